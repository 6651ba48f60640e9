// The ring engines of device communicators: copy engines where they can and pay; else kernels and NCCL steps of
// exchanges, on a stream of the ring, of the highest priority.
#pragma once

#include <memory>

#include "ring/engine.h"

namespace seqpar {

/// Collective over the ring's ranks; `buffers` without the number of sets.
RingChoice chooseDeviceRingEngine(Communicator& comm, const RingBuffers& buffers);

/// Collective over the ring's ranks.
std::unique_ptr<RingEngine> makeDeviceRingEngine(const std::shared_ptr<Communicator>& comm, const RingBuffers& buffers,
                                                 const RingChoice& choice);

}  // namespace seqpar
