// Launch of the merge of partial attention between peers.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/exchange/lse_merge_task.h"
#include "kernels/peers.h"

namespace seqpar {

/// One rank's part, in task.channels CTAs. All ranks launch the same kind, shape and number of channels. The kernel may
/// start before the previous kernel of the stream ends, and accesses no global memory before that end.
cudaError_t launchLseMerge(const PeerView& view, const MergeTask& task, cudaStream_t stream);

}  // namespace seqpar
