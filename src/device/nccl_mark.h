// Counting on the device, in stream order, for the host to look at.
#pragma once

#include <cstdint>

#include "device/cuda.h"

namespace seqpar {

/// Adds 1 to `counter`, in mapped host memory; also when replayed from a graph.
void launchMark(volatile std::uint32_t* counter, cudaStream_t stream);

}  // namespace seqpar
