// Tracks the parts of a rank's byte ring that contain unread messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace seqpar {

/// Places messages consecutively and reclaims them in order, after all their readers have released them. Uses the whole
/// ring even if no message is unread: lines that have left the first-level caches of the last writer and reader are
/// written and read about three times faster than lines that both caches still hold.
class Outbox {
 public:
  /// One reader of one message.
  struct Reader {
    int rank;
    uint64_t sequence;  ///< of the message on the queue to `rank`
    size_t tail;        ///< start of the oldest unread message once this reader is done
  };

  explicit Outbox(size_t capacity) : capacity_(capacity) {}

  /// An offset with `bytes` free bytes, a multiple of 64; nothing if there is none. Stays free until keep().
  std::optional<size_t> place(size_t bytes) const;

  /// Adds a reader of the message at `offset`, which was just placed.
  void keep(size_t offset, size_t bytes, int rank, uint64_t sequence);

  /// Forgets messages, oldest first, while consumed(rank) >= sequence for all their readers.
  template <typename Consumed>
  void reclaim(Consumed&& consumed) {
    while (!readers_.empty() && consumed(readers_.front().rank) >= readers_.front().sequence) dropOldest();
  }

  /// The reader that reclaim() waits for; nullptr if no message is unread.
  const Reader* oldest() const { return readers_.empty() ? nullptr : &readers_.front(); }

 private:
  void dropOldest();

  size_t capacity_;
  size_t head_ = 0;  ///< offset of the next message
  size_t tail_ = 0;  ///< start of the oldest unread message; == head_ only if there is none
  std::deque<Reader> readers_;
};

}  // namespace seqpar
