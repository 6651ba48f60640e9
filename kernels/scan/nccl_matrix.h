// The hop of operators with a matrix A per head, in ordinary fp32 arithmetic.
#pragma once

#include "kernels/scan/nccl_map.h"

namespace seqpar {

/// launchHop() for matrices; the block is whole heads.
cudaError_t launchMatrixHop(const MapShape& shape, const MapHop& hop, cudaStream_t stream);

}  // namespace seqpar
