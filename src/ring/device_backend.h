// The ring backends of device communicators: copy engines where they can and pay; else kernels and NCCL steps of
// exchanges, on a stream of the ring, of the highest priority, or the caller's.
#pragma once

#include <memory>

#include "ring/backend.h"

namespace seqpar {

/// Collective over the ring's ranks; `buffers` without the number of sets.
RingChoice chooseDeviceRingBackend(Communicator& comm, const RingBuffers& buffers);

/// Collective over the ring's ranks.
std::unique_ptr<RingBackend> makeDeviceRingBackend(const std::shared_ptr<Communicator>& comm,
                                                   const RingBuffers& buffers, const RingChoice& choice);

}  // namespace seqpar
