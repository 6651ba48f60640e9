// The kernels of All-Scan with a matrix a head.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/peers.h"
#include "kernels/scan/matrix_plan.h"

namespace seqpar {

/// The most CTAs of a call, each of which fills an SM: two communicators, or two ranks, fit an H100 or H200.
constexpr int kMostMatrixChannels = 64;

/// True if a seqparScanAlgorithm_t can do heads of dk rows among several ranks with so many channels. CHAIN and LASP1
/// need a panel of 16 columns in a ring: dk up to 752 in fp32 on the wire, and up to 1520 in 16 bits. The others need a
/// whole matrix in shared memory and in the rings of two channels: dk up to 128, or 80 where there is one channel. The
/// same on all ranks.
bool matrixScanFits(int algorithm, std::size_t dk, seqparDataType_t wireType, int channels);

/// One launch for what matrixScanFits().
cudaError_t launchMatrixScan(const PeerView& view, const MatrixScan& scan, int algorithm, cudaStream_t stream);

}  // namespace seqpar
