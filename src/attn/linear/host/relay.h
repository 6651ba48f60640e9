// The order of a distributed call on hosts in which states are sent from rank to rank head by head: a rank computes a
// head in one pass, from the incoming state, while its neighbors compute other heads.
#pragma once

#include <functional>

#include "attn/exec/host.h"
#include "attn/linear/host/segments.h"
#include "attn/linear/passes/passes.h"

namespace seqpar::attn::linear {

/// The states of a call on one rank, as arrays of seqparAllScan().
struct RelayStates {
  const float* initial = nullptr;  ///< copied to `incoming` on the direction's first rank; null: zeros
  float* incoming = nullptr;
  float* outgoing = nullptr;  ///< written by the work; null: neither requested nor sent
};

/// The threads that share a head's tokens: all if there are fewer heads than threads, one in a Relay.
inline size_t threadsOfHead(const Shard& shard, HostExec& exec) {
  return shard.relays ? 1 : static_cast<size_t>(exec.pool().threads());
}

class Relay {
 public:
  /// Work on the states of heads first ... first + count - 1; runs on the Exec's main stream.
  using Work = std::function<void(size_t first, size_t count)>;

  /// Not collective: a program may create a plan while another of its threads is about to enqueue a call on `comm`, as
  /// JAX does. The heads are key heads, with the states of all their heads; no thread shares one (threadsOfHead()).
  Relay(HostExec& exec, seqparComm_t comm, const Shard& shard, const Chunks& chunks);

  /// The states of `scan`. `own`: memory for outgoing states that the scan does not request.
  RelayStates statesOf(const OwnScan& scan, seqparDirection_t direction, float* own) const;
  /// For each group of heads: receives their incoming states, computes, and sends their outgoing states.
  void run(seqparDirection_t direction, const RelayStates& states, const Work& work) const;
  /// A forward that computes each segment of each head by `output`, on the threads of the Exec.
  using Output = std::function<void(size_t segment, size_t head, int thread)>;
  void runForward(const RelayStates& states, const Output& output) const;

 private:
  /// The rank `steps` after this one in `direction`; SEQPAR_NO_PEER: none.
  int peer(seqparDirection_t direction, int steps) const;
  void transfer(const float* send, int to, float* receive, int from) const;

  HostExec& exec_;
  seqparComm_t comm_;
  const Shard& shard_;
  const Chunks& chunks_;
  size_t heads_, atOnce_, stateSize_;
  int rank_ = 0, ranks_ = 1;
};

}  // namespace seqpar::attn::linear
