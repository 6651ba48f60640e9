// The scaling between the collectives of a merge by NCCL, in one kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace seqpar::perf {

/// One rank's partial results, and all ranks' lse.
struct Scale {
  const void* out = nullptr;        ///< [rows][heads][128] of `type`
  const float* lseOfAll = nullptr;  ///< [ranks][rows][heads]
  void* scaled = nullptr;           ///< shape of `out`, or [ranks][rows][heads / ranks][128] if `byHeads`
  float* lseMerged = nullptr;       ///< [rows][heads]
  int type = 0;                     ///< a seqparDataType_t
  int ranks = 1, rank = 0;
  unsigned results = 0, heads = 1;  ///< results: rows * heads
  bool byHeads = false;
};

/// scaled = out * exp(lse - lseMerged), 0 where this rank's lse is -inf.
void launchScale(const Scale& scale, cudaStream_t stream);

}  // namespace seqpar::perf
