// The stream of a ring on a GPU.
#pragma once

#include "device/cuda.h"

namespace seqpar {

/// Creates a stream of the highest priority: transfers posted before a computation must not queue behind its blocks.
inline StreamHandle makeUrgentStream() {
  int least = 0, most = 0;
  checkCuda(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  checkCuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most), "cudaStreamCreateWithPriority");
  return StreamHandle(stream);
}

}  // namespace seqpar
