// The stream of a ring on a GPU.
#pragma once

#include "device/cuda.h"

namespace seqpar {

/// Of the highest priority: what is posted before a computation must not queue behind its thread blocks.
inline StreamHandle makeUrgentStream() {
  int least = 0, most = 0;
  checkCuda(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  checkCuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most), "cudaStreamCreateWithPriority");
  return StreamHandle(stream);
}

}  // namespace seqpar
