// The stream on which communicators are made.
#pragma once

#include <cuda_runtime_api.h>

namespace seqpar {

/// The stream for set-up on the current device: not the default one, which would wait for the caller's kernels, which
/// may wait for us. One for all communicators of the process, since a GPU has few queues: streams beyond their number
/// are served one after the other, and then kernels of ranks that share the GPU wait for each other in vain. What is
/// enqueued here waits for nothing. Never destroyed: at exit the driver may be gone.
cudaStream_t setupStream();

}  // namespace seqpar
