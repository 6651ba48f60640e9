// Errors of the passes on a GPU.
#pragma once

#include "device/cuda.h"

namespace seqpar::attn::linear {

constexpr const char* kDeviceWho = "linear attention on a GPU";

/// Throws Error.
inline void checkLaunch(int error, const char* launch) {
  checkCuda(static_cast<cudaError_t>(error), launch);
}

}  // namespace seqpar::attn::linear
