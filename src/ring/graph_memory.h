// Keeps the memory that graphs use until the graphs are destroyed.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace seqpar {

/// Keeps `memory` alive as long as `graph`, which is being captured, its instances, and running launches of them.
/// Throws UnhandledCudaError.
void keepForGraph(cudaGraph_t graph, std::shared_ptr<void> memory);

/// Frees the memory of destroyed graphs: their callback runs on a thread that must not call CUDA.
void freeOfEndedGraphs() noexcept;

}  // namespace seqpar
