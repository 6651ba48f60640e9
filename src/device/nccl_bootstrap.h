// Bootstrap through the caller's NCCL communicator.
#pragma once

#include <chrono>
#include <memory>

#include "bootstrap/allgather.h"

namespace seqpar {

/// Collective over the ranks of the caller's ncclComm_t, which must outlive this. Stores the communicator's device.
/// InvalidUsage without NCCL.
std::unique_ptr<Allgather> bootstrapThroughNccl(void* ncclComm, std::chrono::milliseconds timeout, int* device);

}  // namespace seqpar
