// The harness's kernels: a barrier, and link measurements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace seqpar::perf {

/// Maximum number of ranks of a barrier by load and store.
constexpr int kMostFlags = 64;

/// One word per rank in every rank's memory, and this rank's state.
struct Flags {
  int self = 0, size = 1;
  uint32_t* words[kMostFlags] = {};  ///< of each rank: words[kMostFlags] and one more for the ping-pong
  uint32_t* epoch = nullptr;         ///< in this rank's memory: barriers so far
  uint32_t* failed = nullptr;        ///< in host memory: 1 + the rank that timed out
};

/// Waits for `holdNs`, during which the host can enqueue more, and then for all ranks.
void launchBarrier(const Flags& flags, uint64_t holdNs, cudaStream_t stream);

/// Ranks 0 and 1 send each other a flag `rounds` times; `from` is the number of flags sent by earlier calls.
void launchPingPong(const Flags& flags, uint32_t from, uint32_t rounds, cudaStream_t stream);

/// Stores `bytes`, a multiple of 16, to a peer's memory from all SMs.
void launchStores(void* to, size_t bytes, cudaStream_t stream);

}  // namespace seqpar::perf
