// The order of a distributed call on hosts in which states are sent from rank to rank head by head: a rank computes a
// head in one pass, from the incoming state, while its neighbors compute other heads.
//
// The next rank waits for the first heads. Where turns.h expects that nothing hides this wait, a rank computes the
// states of its first heads alone, sends them, and computes these heads as a whole after all others. The bits are
// equal.
#pragma once

#include <functional>
#include <memory>

#include "attn/exec/host.h"
#include "attn/linear/host/segments.h"
#include "attn/linear/host/turns.h"
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
  /// Work on a head, in reverse on all heads of a key head; numbered over the batch.
  using HeadWork = std::function<void(size_t head, int thread)>;
  struct Work {
    HeadWork all;     ///< computes the results and the outgoing states of a head
    HeadWork states;  ///< only the outgoing states, with equal bits; null: not implemented
  };
  /// Work on one segment of a head.
  using SegmentWork = std::function<void(size_t segment, size_t head, int thread)>;

  /// Not collective: a program may create a plan while another of its threads is about to enqueue a call on `comm`, as
  /// JAX does. The heads are key heads, with the states of all their heads; no thread shares one (threadsOfHead()).
  Relay(HostExec& exec, seqparComm_t comm, const Shard& shard, const Chunks& chunks);

  /// The states of `scan`. `own`: memory for outgoing states that the scan does not request.
  RelayStates statesOf(const OwnScan& scan, seqparDirection_t direction, float* own) const;
  /// For each group of heads: receives their incoming states, computes, and sends their outgoing states.
  void run(seqparDirection_t direction, const RelayStates& states, const Work& work) const;
  /// A forward that computes each segment of each head by `output`. `state` computes only the outgoing state of a head,
  /// from its last segment; null: not implemented.
  void runForward(const RelayStates& states, const SegmentWork& output, const SegmentWork& state) const;

 private:
  /// The rank `steps` after this one in `direction`; SEQPAR_NO_PEER: none.
  int peer(seqparDirection_t direction, int steps) const;
  void transfer(const float* send, int to, float* receive, int from) const;
  void each(seqparDirection_t direction, const HeadWork& work, size_t first, size_t count) const;

  HostExec& exec_;
  seqparComm_t comm_;
  std::shared_ptr<RelayTurns> turns_;
  const Shard& shard_;
  const Chunks& chunks_;
  size_t heads_, atOnce_, stateSize_;
  int rank_ = 0, ranks_ = 1;
};

}  // namespace seqpar::attn::linear
