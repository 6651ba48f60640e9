// The mailbox over shared-memory queues and the network.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "transport/mailbox.h"
#include "transport/network.h"
#include "transport/outbox.h"
#include "transport/peer_buffers.h"
#include "transport/peer_memory.h"
#include "transport/segment.h"
#include "transport/shared_memory.h"
#include "transport/shared_queue.h"
#include "transport/store_choice.h"
#include "transport/waiter.h"

namespace seqpar {

/// Components of one rank's mailbox. Ranks without a segment use the network.
struct MailboxParts {
  std::unique_ptr<SharedMemory> memory;          ///< null if no rank uses a segment
  std::unique_ptr<Network> network;              ///< null if this rank reaches all ranks by load and store
  std::vector<std::optional<Segment>> segments;  ///< by rank, including this one
  std::vector<size_t> places;                    ///< by rank: its index as a reader in the segments of its host
  std::unique_ptr<PeerMemory> reach;             ///< null if this rank reaches no rank by load and store
  std::unique_ptr<PeerBuffers> buffers;          ///< likewise
};

class QueueMailbox final : public Mailbox {
 public:
  QueueMailbox(MailboxParts parts, Health& health, const Waiter::Options& options);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  size_t maxMessage() const override { return kMaxMessage; }
  size_t window() const override { return kWindow; }
  bool direct(int peer) const override { return peers_[static_cast<size_t>(peer)].send.has_value(); }

  void begin(const char* operation, uint64_t number) override;
  void mark(uint64_t digest) override { mark_ = 1 + static_cast<uint32_t>(digest % (MessageHead::kMarks - 1)); }
  void end() override;
  void abandon() noexcept override;
  bool waited() const override { return waiter_.waited(); }
  Target acquire(std::span<const int> to, size_t bytes) override;
  void commit() override;
  const std::byte* receive(int from, size_t bytes) override;
  void release(int from) override;
  bool ready(int from) override;
  bool readable(int peer) const override { return parts_.reach != nullptr && parts_.reach->readable(peer); }
  bool prefersMessages(int peer) override;
  using Mailbox::read;
  void read(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into) override;
  bool mapped(int peer) const override { return parts_.buffers != nullptr && parts_.buffers->mapped(peer); }
  bool shared(const void* data, size_t bytes) const override {
    return parts_.buffers != nullptr && parts_.buffers->own(data, bytes);
  }
  const std::byte* view(int peer, uint64_t address, size_t bytes) override {
    return mapped(peer) ? parts_.buffers->view(peer, address, bytes) : nullptr;
  }
  void endViews(int peer) override;

 private:
  struct Peer {
    std::optional<SendQueue> send;
    std::optional<ReceiveQueue> receive;
    Doorbell* doorbell = nullptr;
    StoreChoice stores;  ///< for messages to this rank
    TrialClock clock{};  ///< of messages from this rank
  };
  /// The message under construction.
  struct Draft {
    std::vector<int> to;
    bool remote = false;  ///< to a rank that this one reaches over the network
    Trial trial = Trial::None;
    int judge = 0;            ///< the trial's reader
    int64_t start = 0;        ///< of writing, in ticks, in a trial
    Peer* inlined = nullptr;  ///< the message is in this peer's next descriptor, `to` is unused
    size_t bytes = 0;
    std::optional<size_t> offset;  ///< in the ring; empty if the message is in inline_ or inlined
    bool open = false;
  };
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void awaitDescriptor(int to);
  size_t awaitPlace(size_t bytes);
  /// Size of a message of `bytes` on the network: its mark follows, unless it is 0.
  size_t networkBytes(size_t bytes) const { return bytes + (mark_ == 0 ? 0 : sizeof(mark_)); }
  size_t ringBytes() const { return draft_.remote ? networkBytes(draft_.bytes) : draft_.bytes; }
  const std::byte* receiveFromNetwork(int from, size_t bytes);
  [[noreturn]] void refuse(int from, size_t bytes, size_t sent) const;
  void keep(int rank, uint64_t sequence);
  Store chooseStore();
  bool arrived(int from);
  bool readMapped(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into);
  uint64_t consumed(int by);

  const int rank_;
  Health& health_;
  std::unique_ptr<CacheLine[]> ownRing_;  ///< for a rank without a segment; the network sends from it
  MailboxParts parts_;
  Doorbell ownDoorbell_{};  ///< for a rank without a segment
  std::vector<Peer> peers_;
  std::byte* ring_ = nullptr;
  Outbox outbox_{kRingBytes}, small_{kSmallRingBytes};
  Draft draft_;
  uint32_t mark_ = 0;
  size_t judges_ = 0;                  ///< choices of a judge so far
  std::array<CacheLine, 2> inline_{};  ///< an inline message to several ranks, under construction
  Waiter waiter_;
};

}  // namespace seqpar
