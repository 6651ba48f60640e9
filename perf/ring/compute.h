// Computation that overlaps with a ring: arithmetic that uses a processor, or all SMs of a GPU, and no memory.
#pragma once

#include "common/session.h"

namespace seqpar::perf {

/// Arithmetic of `rounds` rounds: on a GPU's stream, on a host stream, or in the call.
class Computation {
 public:
  explicit Computation(long rounds) : rounds_(rounds) {}
  Computation(const Computation&) = delete;
  Computation& operator=(const Computation&) = delete;

  /// The object must outlive its work on the stream.
  void run(const Session& session);
  /// On the calling thread.
  void runHere() const;

 private:
  long rounds_;
};

/// Collective: the rounds that take `us` on the slowest rank.
long roundsFor(double us, Session& session);

#ifdef SEQPAR_PERF_CUDA
/// On every SM of the current device; `stream` is a cudaStream_t.
void computeOnGpu(long rounds, void* stream);
#endif

}  // namespace seqpar::perf
