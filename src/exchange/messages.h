// How the payloads of an exchange are cut into messages, and the sending of them.
//
// An operation goes in rounds: in round k every rank sends the k-th message of each of its payloads, and receives the
// messages of round k - kLead. What it has published and others have not read is at most the messages of kLead + 1
// rounds, which fit the mailbox's window, so no rank waits for space that depends on a rank waiting for it. Where there
// are so many ranks that even the least messages would not fit, a batch of ranks is served after the other.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/walk.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Rounds that a rank sends before it waits for the first: slack between the ranks.
inline constexpr size_t kLead = 2;

/// How a communicator of this size cuts payloads; the same on both ends of a queue.
class Cutting {
 public:
  explicit Cutting(const Mailbox& mail);

  /// Batches of peers: rank + d is served in batch (d - 1) / batchSize.
  size_t batches() const { return batches_; }
  size_t batchOf(int from, int to) const;

  /// Bytes of all messages but the last of a payload; a multiple of 64.
  size_t message(size_t payloadBytes) const;
  size_t messages(size_t payloadBytes) const;
  /// Bytes of message `index`.
  size_t messageAt(size_t payloadBytes, size_t index) const;

 private:
  size_t ranks_, most_, batchSize_, batches_;
};

/// Copies the next `bytes` of a payload into a message.
void pack(Target to, RegionWalk<const std::byte>& from, size_t bytes);
/// Copies a message, or a part of one, to the next `bytes` of a payload. Streamed: finishParts() is to follow.
void unpack(RegionWalk<std::byte>& to, const std::byte* from, size_t bytes, Store store = Store::Cached);

/// A payload that this rank sends, to all ranks that get the same.
struct OutgoingPayload {
  std::vector<int> to;
  size_t batch = 0;
  size_t bytes = 0;
  RegionWalk<const std::byte> walk;
  std::vector<int> readers;  ///< of the receivers, those that read it where it lies, in place of messages

  void send(Mailbox& mail, const Cutting& cutting, size_t round);
};

/// All payloads that this rank sends to others, in the order in which it sends them: to the ranks after it first.
/// Transfers to itself and empty payloads are left out.
std::vector<OutgoingPayload> outgoingPayloads(const Mailbox& mail, const Cutting& cutting,
                                              std::span<const Transfer> sends,
                                              std::span<const std::byte* const> buffers);

/// The payload of transfers that name `peer`.
template <typename Byte>
RegionWalk<Byte> payloadOf(std::span<const Transfer> transfers, int peer, std::span<Byte* const> buffers) {
  RegionWalk<Byte> walk;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == peer) walk.add(transfer.region, buffers[static_cast<size_t>(transfer.region.buffer)]);
  }
  return walk;
}

}  // namespace seqpar
