// The two ends of a queue through shared memory. Neither end waits here; see Waiter.
//
// Publishing and releasing are sequentially consistent exchanges, because each is followed by a load of the other
// side's Bell: either the publisher observes that the rank falls asleep, or that rank observes the message.
#pragma once

#include <cstring>

#include "transport/segment.h"

namespace seqpar {

/// The sender's end.
class SendQueue {
 public:
  SendQueue(Descriptor* descriptors, const Ack& ack) : descriptors_(descriptors), ack_(&ack) {}

  /// True if no descriptor is free. Reads the reader's cache line only if the queue may be full.
  bool full() { return sent_ - known_ >= kDescriptors && sent_ - consumed() >= kDescriptors; }

  /// Number of messages that the reader has released.
  uint64_t consumed() { return known_ = ack_->consumed.load(std::memory_order_seq_cst); }

  /// Publishes a message of at most kInlineBytes, copied. Not while full(). Returns its sequence number.
  uint64_t publishInline(const std::byte* payload, size_t bytes, uint32_t mark) {
    Descriptor& descriptor = next();
    if (bytes != 0) std::memcpy(descriptor.place(bytes), payload, bytes);
    return publish(descriptor, bytes, mark);
  }

  /// Memory for the next message, of at most kInlineBytes. Not while full().
  std::byte* place(size_t bytes) const { return next().place(bytes); }
  /// Publishes the message at place(bytes). Returns its sequence number.
  uint64_t publishPlaced(size_t bytes, uint32_t mark) { return publish(next(), bytes, mark); }

  /// The reader's times of the latest trial.
  ReadingTimes readingTimes() const { return {ack_->reading.load(std::memory_order_relaxed)}; }

  /// Publishes a message that is stored at `offset` of the ring. Not while full(). Returns its sequence number.
  uint64_t publishAt(size_t offset, size_t bytes, uint32_t mark, Trial trial) {
    Descriptor& descriptor = next();
    descriptor.line = static_cast<uint16_t>(offset / kCacheLine);
    descriptor.trial = trial;
    return publish(descriptor, bytes, mark);
  }

 private:
  Descriptor& next() const { return descriptors_[sent_ % kDescriptors]; }

  uint64_t publish(Descriptor& descriptor, size_t bytes, uint32_t mark) {
    descriptor.head = {bytes, mark};
    descriptor.sequence.exchange(++sent_, std::memory_order_seq_cst);
    const Descriptor& later = descriptors_[(sent_ + kAhead) % kDescriptors];
    fetchToWrite(&later.sequence);
    if (bytes > kShortBytes && bytes <= kInlineBytes) fetchToWrite(&later);
    return sent_;
  }

  /// Descriptors to fetch ahead. The reader's cache holds a descriptor that it has read, and fetching it back takes as
  /// long as a message.
  static constexpr uint64_t kAhead = 4;
  static void fetchToWrite([[maybe_unused]] const void* line) {
#if defined(__x86_64__)
    asm volatile("prefetchw (%0)" : : "r"(line));
#endif
  }

  Descriptor* descriptors_;
  const Ack* ack_;
  uint64_t sent_ = 0;
  uint64_t known_ = 0;
};

/// The reader's end.
class ReceiveQueue {
 public:
  ReceiveQueue(const Descriptor* descriptors, Ack& ack, const std::byte* ring)
      : descriptors_(descriptors), ack_(&ack), ring_(ring) {}

  /// True if the next message has arrived.
  bool arrived() const { return next().sequence.load(std::memory_order_seq_cst) == received_ + 1; }

  /// Its size, mark and address. Requires arrived().
  MessageHead head() const { return next().head; }
  const std::byte* data() const {
    const Descriptor& descriptor = next();
    const size_t bytes = descriptor.head.bytes();
    return bytes > kInlineBytes ? ring_ + descriptor.line * kCacheLine : descriptor.place(bytes);
  }

  /// Its role in a trial. Requires arrived().
  Trial trial() const {
    const Descriptor& descriptor = next();
    return descriptor.head.bytes() > kInlineBytes ? descriptor.trial : Trial::None;
  }
  /// Tells the sender the times of a trial.
  void report(ReadingTimes times) { ack_->reading.store(times.word, std::memory_order_relaxed); }

  /// Releases it to the sender.
  void release() { ack_->consumed.exchange(++received_, std::memory_order_seq_cst); }

 private:
  const Descriptor& next() const { return descriptors_[received_ % kDescriptors]; }

  const Descriptor* descriptors_;
  Ack* ack_;
  const std::byte* ring_;
  uint64_t received_ = 0;
};

}  // namespace seqpar
