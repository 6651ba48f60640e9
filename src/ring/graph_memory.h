// Memory that graphs use, which must not be freed before they are.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace seqpar {

/// Keeps `memory` alive as long as `graph`, which is being captured, and what is instantiated of it; also while a
/// launch goes on after both are destroyed. Throws UnhandledCudaError.
void keepForGraph(cudaGraph_t graph, std::shared_ptr<void> memory);

/// Frees what ended graphs have kept: they end on a thread that must not call CUDA.
void freeOfEndedGraphs() noexcept;

}  // namespace seqpar
