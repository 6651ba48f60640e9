// Layout of a rank's segment in shared memory: the queues from this rank to the other ranks of its host.
//
// A message of at most kInlineBytes is stored in its descriptor: up to kShortBytes in the cache line that the receiver
// polls, a longer one from the preceding line on. A larger message is built in a byte ring, is written once for any
// number of readers, and its descriptor contains its offset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/store_choice.h"

namespace seqpar {

inline constexpr size_t kCacheLine = 64;
/// Words that different processors write are two lines apart, because processors fetch lines in pairs.
inline constexpr size_t kWordDistance = 128;
inline constexpr size_t kShortBytes = 48;
inline constexpr size_t kInlineBytes = kCacheLine + kShortBytes;
/// Maximum number of unread messages of a queue.
inline constexpr size_t kDescriptors = 2048;
inline constexpr size_t kMaxMessage = size_t{256} << 10;
inline constexpr size_t kWindow = size_t{1} << 20;
/// With kWindow bytes unread and up to kMaxMessage lost at the wrap, one contiguous kMaxMessage is still free. Larger
/// than the caches of one processor, see Outbox; small enough that the rings of eight ranks fit a shared cache.
inline constexpr size_t kRingBytes = size_t{2} << 20;
/// A second ring, behind the first, for messages of at most kSmallMessage while it has room: it stays in the caches.
inline constexpr size_t kSmallRingBytes = size_t{16} << 10;
inline constexpr size_t kSmallMessage = size_t{4} << 10;

/// One cache line of memory for messages.
struct alignas(kCacheLine) CacheLine {
  std::byte bytes[kCacheLine];
};

/// A message's size, and in the bits above it the mark of its operation (Mailbox::mark()).
class MessageHead {
 public:
  MessageHead() = default;
  MessageHead(size_t bytes, uint32_t mark) : word_(static_cast<uint32_t>(bytes) | (mark << kSizeBits)) {}

  static constexpr uint32_t kMarks = uint32_t{1} << 13;  ///< marks are smaller

  size_t bytes() const { return word_ & ((uint32_t{1} << kSizeBits) - 1); }
  bool operator==(const MessageHead&) const = default;

 private:
  static constexpr unsigned kSizeBits = 19;
  static_assert(kMaxMessage < size_t{1} << kSizeBits && kMarks == uint32_t{1} << (32 - kSizeBits));

  uint32_t word_;
};

struct alignas(2 * kCacheLine) Descriptor {
  std::byte payload[kInlineBytes];
  MessageHead head;
  uint16_t line;                   ///< offset of the message in the ring, in cache lines; unused if it is inline
  Trial trial;                     ///< likewise
  std::atomic<uint64_t> sequence;  ///< n once this descriptor contains the queue's n-th message (from 1)

  /// The memory of a message of `size` bytes in the descriptor.
  std::byte* place(size_t size) { return payload + (size <= kShortBytes ? kCacheLine : 0); }
  const std::byte* place(size_t size) const { return payload + (size <= kShortBytes ? kCacheLine : 0); }
};
static_assert(sizeof(Descriptor) == 2 * kCacheLine && std::atomic<uint64_t>::is_always_lock_free);
static_assert((kRingBytes + kSmallRingBytes) / kCacheLine <= size_t{1} << 16);

/// Written by the reader, in the sender's segment.
struct alignas(kWordDistance) Ack {
  std::atomic<uint64_t> consumed;  ///< number of messages of its queue that the reader has released
  std::atomic<uint64_t> reading;   ///< ReadingTimes::word of the latest trial
};

/// Futex on which a waiting rank sleeps. A rank that gives it work rings the bell.
struct alignas(kWordDistance) Doorbell {
  std::atomic<uint32_t> asleep;
};

struct SegmentHeader {
  uint64_t token;  ///< random number of the owner; tells a peer that it has mapped the right memory
  Doorbell doorbell;
  alignas(kWordDistance) std::atomic<uint32_t> abandoned;  ///< 1 once the owner has given up an operation
};

/// Addresses of the parts of a segment. Queues are indexed by the readers' places among the ranks of the host.
class Segment {
 public:
  Segment() = default;
  Segment(std::byte* base, size_t readers) : base_(base), readers_(readers) {}

  static constexpr size_t bytes(size_t readers) { return ringAt(readers) + kRingBytes + kSmallRingBytes; }

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
