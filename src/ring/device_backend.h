// The ring backends of device communicators: copy engines if they are supported and faster; otherwise kernels and NCCL
// steps of exchanges, on a high-priority stream of the ring, or on the caller's.
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
