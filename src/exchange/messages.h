// How the payloads of an exchange are cut into messages and sent.
//
// An operation runs in rounds: in round k every rank sends the k-th message of each of its payloads, and receives the
// messages of round k - kLead. A rank's published but unread messages are at most those of kLead + 1 rounds, which fit
// the mailbox's window, so no rank waits for space that depends on a rank waiting for it. With so many ranks that even
// minimal messages would not fit, batches of ranks are served one after the other.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/walk.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Rounds that a rank sends before it waits for the first: slack between the ranks.
inline constexpr size_t kLead = 2;

/// How a communicator of this size cuts payloads; equal on both ends of a queue.
class Cutting {
 public:
  explicit Cutting(const Mailbox& mail);

  /// Batches of peers: rank + d is served in batch (d - 1) / batchSize.
  size_t batches() const { return batches_; }
  size_t batchOf(int from, int to) const;

  /// Bytes of every message of a payload except the last; a multiple of 64.
  size_t message(size_t payloadBytes) const;
  size_t messages(size_t payloadBytes) const;
  /// Bytes of message `index`.
  size_t messageAt(size_t payloadBytes, size_t index) const;

 private:
  size_t ranks_, most_, batchSize_, batches_;
};

/// Copies the next `bytes` of a payload into a message.
void pack(Target to, RegionWalk<const std::byte>& from, size_t bytes);
/// Copies a message, or a part of one, to the next `bytes` of a payload. For streamed stores, finishParts() must
/// follow.
void unpack(RegionWalk<std::byte>& to, const std::byte* from, size_t bytes, Store store = Store::Cached);

/// Loads the start of the next run into the caches: hardware prefetchers follow a long run, but cannot predict the
/// address of the next run.
void prefetchRun(const RegionWalk<const std::byte>& walk);

/// The stores for a part of `bytes` in an exchange that uses `store`: for less than a few whole cache lines,
/// non-temporal stores do not pay off.
constexpr Store storeOfPart(Store store, size_t bytes) {
  constexpr size_t kLeastStreamed = 512;
  return bytes < kLeastStreamed ? Store::Cached : store;
}

/// A payload that this rank sends, with all ranks that receive equal bytes.
struct OutgoingPayload {
  std::vector<int> receivers;
  size_t batch = 0;
  size_t bytes = 0;
  RegionWalk<const std::byte> walk;
  std::vector<int> to;       ///< the receivers of messages
  std::vector<int> readers;  ///< the receivers that read it in place

  /// To be called before each use.
  void restart(std::span<const std::byte* const> buffers);
  void send(Mailbox& mail, const Cutting& cutting, size_t round);
};

/// All payloads that this rank sends to other ranks, in sending order: ranks after this one first. Without transfers to
/// itself and empty payloads.
std::vector<OutgoingPayload> outgoingPayloads(const Mailbox& mail, const Cutting& cutting,
                                              std::span<const Transfer> sends);

/// The payload of all transfers with `peer`. RegionWalk::restart() sets its buffers.
template <typename Byte>
RegionWalk<Byte> payloadOf(std::span<const Transfer> transfers, int peer) {
  RegionWalk<Byte> walk;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == peer) walk.add(transfer.region, nullptr);
  }
  return walk;
}

}  // namespace seqpar
