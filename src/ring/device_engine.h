// The ring engine of device communicators.
#pragma once

#include <memory>

#include "ring/engine.h"

namespace seqpar {

/// Collective over the ring's ranks. Copy engines where they can and pay; else kernels and NCCL steps of exchanges, on
/// a stream of the ring, of the highest priority.
std::unique_ptr<RingEngine> makeDeviceRingEngine(std::shared_ptr<Communicator> comm, const RingBuffers& buffers);

}  // namespace seqpar
