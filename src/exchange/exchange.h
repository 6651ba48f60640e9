// Execution of routes on host memory: pure data movement. reduction.h adds arithmetic.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/messages.h"
#include "exchange/rendezvous.h"
#include "exchange/route.h"
#include "transport/mailbox.h"

namespace seqpar {

/// One rank's part of an exchange, inside an operation of `mail`. Every rank named in another rank's route takes part;
/// other ranks need not. Send and receive buffers do not overlap; regions count from the buffers' first bytes.
void exchangeOnHost(Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
                    std::span<std::byte* const> receiveBuffers);

/// exchangeOnHost() for repeated exchanges of one route: creates the lists of payloads once. Allocates no memory in
/// run(), unless payloads are read in place. Not thread safe.
class HostExchange {
 public:
  HostExchange(const Mailbox& mail, const Route& route);

  void run(Mailbox& mail, std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers);

 private:
  /// A payload that this rank receives.
  struct Incoming {
    int from = 0;
    size_t batch = 0;
    size_t bytes = 0;
    RegionWalk<std::byte> walk;
    RemotePayload remote;  ///< where to read it; empty: it arrives in messages

    void restart(std::span<std::byte* const> buffers);
    void receive(Mailbox& mail, const Cutting& cutting, size_t round, Store store);
  };

  static std::vector<Incoming> incomingPayloads(const Mailbox& mail, const Cutting& cutting,
                                                std::span<const Transfer> receives);
  void copyOwn(std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers);
  void runBatch(Mailbox& mail, size_t batch);

  Cutting cutting_;
  RegionWalk<const std::byte> ownFrom_;  ///< sent by this rank to itself
  RegionWalk<std::byte> ownInto_;
  bool ownIsOneRun_ = false;  ///< both are one contiguous run
  bool small_;
  Route others_;  ///< the transfers with other ranks of a small route
  std::vector<OutgoingPayload> outgoing_;
  std::vector<Incoming> incoming_;  ///< in the other ranks' sending order: ranks before this one first
  Store store_ = Store::Cached;
};

}  // namespace seqpar
