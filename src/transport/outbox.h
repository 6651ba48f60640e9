// Which parts of a rank's byte ring hold messages that somebody has yet to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace seqpar {

/// Places messages one behind the other and reclaims them in the same order, once all their readers have handed them
/// back. Goes round the whole ring even when nothing is unread: lines that have left the first caches of the last
/// writer and reader are written and read some three times faster than those that both still hold.
class Outbox {
 public:
  /// One reader of one message.
  struct Reader {
    int rank;
    uint64_t sequence;  ///< of the message on the queue to `rank`
    size_t tail;        ///< where the oldest unread message begins once this reader is done
  };

  explicit Outbox(size_t capacity) : capacity_(capacity) {}

  /// An offset with `bytes` free bytes behind it, a multiple of 64; nothing if there is none. Stays free until kept.
  std::optional<size_t> place(size_t bytes) const;

  /// Says that the message at `offset`, just placed, is read by one more rank.
  void keep(size_t offset, size_t bytes, int rank, uint64_t sequence);

  /// Forgets messages, oldest first, while consumed(rank) >= sequence for all their readers.
  template <typename Consumed>
  void reclaim(Consumed&& consumed) {
    while (!readers_.empty() && consumed(readers_.front().rank) >= readers_.front().sequence) dropOldest();
  }

  /// Whom reclaim() waits for; nullptr if nothing is unread.
  const Reader* oldest() const { return readers_.empty() ? nullptr : &readers_.front(); }

 private:
  void dropOldest();

  size_t capacity_;
  size_t head_ = 0;  ///< where the next message goes
  size_t tail_ = 0;  ///< where the oldest unread message begins; == head_ only if nothing is unread
  std::deque<Reader> readers_;
};

}  // namespace seqpar
