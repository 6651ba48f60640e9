// What stands in the shared memory of one rank, its segment: the queues that lead from it to the other ranks of its
// host.
//
// A message of at most kInlineBytes travels inside its descriptor, one cache line that the receiver polls; a larger one
// is built in the byte ring, is written once however many ranks read it, and its descriptor says where it lies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace seqpar {

inline constexpr size_t kLine = 64;
/// Words that different processors write stay two lines apart, because processors fetch lines in pairs.
inline constexpr size_t kApart = 128;
inline constexpr size_t kInlineBytes = 48;
/// Messages that a queue holds unread.
inline constexpr size_t kDescriptors = 2048;
inline constexpr size_t kMaxMessage = size_t{256} << 10;
inline constexpr size_t kWindow = size_t{1} << 20;
/// With kWindow bytes unread and up to kMaxMessage lost at the wrap, one contiguous kMaxMessage is still free. More
/// than the caches of one processor, see Outbox; little enough that the rings of eight ranks stay in a shared cache.
inline constexpr size_t kRingBytes = size_t{2} << 20;

/// Memory for messages, a cache line of it.
struct alignas(kLine) Line {
  std::byte bytes[kLine];
};

struct alignas(kLine) Descriptor {
  std::byte payload[kInlineBytes];
  uint32_t bytes;
  uint32_t line;                   ///< where the message begins in the ring, in cache lines; unused if it is inline
  std::atomic<uint64_t> sequence;  ///< n once the queue's n-th message (from 1) stands here
};
static_assert(sizeof(Descriptor) == kLine && std::atomic<uint64_t>::is_always_lock_free);

/// How many messages of its queue a reader has handed back. Written by the reader, in the sender's segment.
struct alignas(kApart) Ack {
  std::atomic<uint64_t> consumed;
};

/// Where a rank sleeps that waits; a futex. A rank that gives it something to do rings.
struct alignas(kApart) Bell {
  std::atomic<uint32_t> asleep;
};

struct SegmentHeader {
  uint64_t token;  ///< drawn by the owner; tells a peer that it has mapped the right memory
  Bell bell;
};

/// Finds the parts of a segment. Queues are numbered by the readers' places among the ranks of the host.
class Segment {
 public:
  Segment() = default;
  Segment(std::byte* base, size_t readers) : base_(base), readers_(readers) {}

  static constexpr size_t bytes(size_t readers) { return ringAt(readers) + kRingBytes; }

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  Ack& ack(size_t reader) const { return reinterpret_cast<Ack*>(base_ + kAcksAt)[reader]; }
  Descriptor* descriptors(size_t reader) const {
    return reinterpret_cast<Descriptor*>(base_ + descriptorsAt(readers_)) + reader * kDescriptors;
  }
  std::byte* ring() const { return base_ + ringAt(readers_); }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kAcksAt = sizeof(SegmentHeader);
  static constexpr size_t descriptorsAt(size_t readers) {
    return (kAcksAt + readers * sizeof(Ack) + kPage - 1) / kPage * kPage;
  }
  static constexpr size_t ringAt(size_t readers) {
    return descriptorsAt(readers) + readers * kDescriptors * sizeof(Descriptor);
  }

  std::byte* base_ = nullptr;
  size_t readers_ = 0;
};

}  // namespace seqpar
