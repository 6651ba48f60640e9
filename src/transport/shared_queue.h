// The two ends of a queue through shared memory. Neither end waits here; see Waiter.
//
// Publishing and handing back are sequentially consistent exchanges, because each is followed by a look at the other
// side's Bell: of a publisher and a rank that falls asleep, one must see the other.
#pragma once

#include <cstring>

#include "transport/segment.h"

namespace seqpar {

/// The sender's end.
class SendQueue {
 public:
  SendQueue(Descriptor* descriptors, const Ack& ack) : descriptors_(descriptors), ack_(&ack) {}

  /// True if no descriptor is free. Reads the reader's line only when it seems so.
  bool full() { return sent_ - known_ >= kDescriptors && sent_ - consumed() >= kDescriptors; }

  /// How many messages the reader has handed back.
  uint64_t consumed() { return known_ = ack_->consumed.load(std::memory_order_seq_cst); }

  /// Publishes a message of at most kInlineBytes, copied. Not while full(). Returns its sequence number.
  uint64_t publishInline(const std::byte* payload, size_t bytes) {
    Descriptor& descriptor = next();
    if (bytes != 0) std::memcpy(descriptor.payload, payload, bytes);
    return publish(descriptor, bytes);
  }

  /// Publishes a message that stands at `offset` of the ring. Not while full(). Returns its sequence number.
  uint64_t publishAt(size_t offset, size_t bytes) {
    Descriptor& descriptor = next();
    descriptor.line = static_cast<uint32_t>(offset / kLine);
    return publish(descriptor, bytes);
  }

 private:
  Descriptor& next() const { return descriptors_[sent_ % kDescriptors]; }

  uint64_t publish(Descriptor& descriptor, size_t bytes) {
    descriptor.bytes = static_cast<uint32_t>(bytes);
    descriptor.sequence.exchange(++sent_, std::memory_order_seq_cst);
    return sent_;
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

  /// True if the next message is there.
  bool arrived() const { return next().sequence.load(std::memory_order_seq_cst) == received_ + 1; }

  /// Its size and place. Only if arrived().
  size_t bytes() const { return next().bytes; }
  const std::byte* data() const {
    const Descriptor& descriptor = next();
    return descriptor.bytes <= kInlineBytes ? descriptor.payload : ring_ + descriptor.line * kLine;
  }

  /// Hands it back.
  void release() { ack_->consumed.exchange(++received_, std::memory_order_seq_cst); }

 private:
  const Descriptor& next() const { return descriptors_[received_ % kDescriptors]; }

  const Descriptor* descriptors_;
  Ack* ack_;
  const std::byte* ring_;
  uint64_t received_ = 0;
};

}  // namespace seqpar
