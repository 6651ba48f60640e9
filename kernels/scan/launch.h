// The kernels of the element-wise All-Scan, one function an algorithm, each in a unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/peers.h"
#include "kernels/scan/task.h"

namespace seqpar {

cudaError_t launchChain(const PeerView& view, const ScanTask& task, cudaStream_t stream);
cudaError_t launchOneshot(const PeerView& view, const ScanTask& task, cudaStream_t stream);
cudaError_t launchTransposed(const PeerView& view, const ScanTask& task, cudaStream_t stream);
cudaError_t launchDoubling(const PeerView& view, const ScanTask& task, cudaStream_t stream);
cudaError_t launchLasp1(const PeerView& view, const ScanTask& task, cudaStream_t stream);
cudaError_t launchLasp2(const PeerView& view, const ScanTask& task, cudaStream_t stream);

}  // namespace seqpar
