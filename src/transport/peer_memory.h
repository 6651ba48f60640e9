// Reads the memory of other processes of this host, if the system allows it: one copy, by the kernel, instead of two
// through shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/health.h"
#include "bootstrap/allgather.h"
#include "transport/mailbox.h"

namespace seqpar {

class PeerMemory {
 public:
  /// Collective: determines which candidates this rank can read, and which can read it.
  PeerMemory(Allgather& control, const std::vector<bool>& candidates);

  /// True if this rank and `peer` can read each other.
  bool readable(int peer) const { return readable_[static_cast<size_t>(peer)]; }

  /// As Mailbox::read(). Throws RemoteError if that process is gone, with the text of `health` if it
  /// fails soon: the peer may have left because of a third rank. Ends soon after `health` has failed.
  void read(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into,
            const Health& health) const;

 private:
  /// A rank's process, and a token that identifies it: the same process number may refer to another process in another
  /// PID namespace, or after the end of the process.
  struct Card {
    uint64_t process;
    uint64_t address;
    uint64_t token;
  };
  bool recognizes(const Card& card) const;

  std::unique_ptr<uint64_t> token_;
  std::vector<Card> cards_;
  std::vector<bool> readable_;
};

}  // namespace seqpar
