// Waiting for a peer: for a packet, credit or a chunk. Memory is as in fifo.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/arch/device.h"
#include "kernels/peers.h"

namespace seqpar {

SEQPAR_DEVICE const WaitPolicy& policyOf(const PeerView& view) {
  return view.waits;
}
SEQPAR_DEVICE const WaitPolicy& policyOf(const WaitPolicy& policy) {
  return policy;
}

/// A wait for a peer: call over() after every unsuccessful poll. `From` has the policy. Scan kernels, which have a
/// PeerView, keep the rare path out of line; exchange kernels would spill registers around a call.
template <class Memory, class From = PeerView>
class Wait {
 public:
  SEQPAR_DEVICE Wait(const From& from, int peer) : from_(from), peer_(peer) {}

  /// Returns true if the caller must give up, publish nothing more, and leave. The host has been told.
  SEQPAR_DEVICE bool over() {
    return over([this] { return peer_; });
  }
  /// For one of several peers: peer() returns its index.
  template <class PeerOf>
  SEQPAR_DEVICE bool over(const PeerOf& peer) {
    Memory::pause();
    return ++polls_ % kPolls == 0 && late(peer());
  }

 private:
  static constexpr std::uint32_t kPolls = 2048;  // reading host memory takes longer than this many polls

  SEQPAR_DEVICE bool late(int peer) {
    if (start_ == 0) start_ = Memory::now();
    if constexpr (std::is_same_v<From, PeerView>) return timesOutApart(from_, peer, start_);
    return timesOut(from_, peer, start_);
  }
  SEQPAR_DEVICE_NOINLINE static bool timesOutApart(const From& from, int peer, std::uint64_t start) {
    return timesOut(from, peer, start);
  }
  SEQPAR_DEVICE static bool timesOut(const From& from, int peer, std::uint64_t start) {
    const WaitPolicy& policy = policyOf(from);
    if (Memory::load(const_cast<const std::uint32_t*>(policy.abort)) == 0 &&
        (policy.timeoutNs == 0 || Memory::now() - start <= policy.timeoutNs))
      return false;
    Memory::store(const_cast<std::uint32_t*>(policy.timedOut), 1U + static_cast<std::uint32_t>(peer));
    return true;
  }

  const From& from_;
  int peer_;
  std::uint32_t polls_ = 0;
  std::uint64_t start_ = 0;
};

/// Polls until arrived() is true. Returns false on timeout: nothing more must be published.
template <class Memory, class From, class Arrived>
SEQPAR_DEVICE bool awaitPeer(const From& from, int peer, const Arrived& arrived) {
  Wait<Memory, From> wait(from, peer);
  SEQPAR_ROLLED
  while (!arrived()) {
    if (wait.over()) return false;
  }
  return true;
}

}  // namespace seqpar
