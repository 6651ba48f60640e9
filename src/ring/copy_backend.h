// The ring backend of GPUs that reach each other's memory, for large tensors: copy engines move them, so the caller's
// computation keeps all SMs.
#pragma once

#include <functional>
#include <memory>

#include "ring/backend.h"

namespace seqpar {

/// Creates the backend that posts while the caller's stream is captured. `buffers` are all allocated; the backend keeps
/// `memory`, which contains them.
using MakeCapturable = std::function<std::unique_ptr<RingBackend>(const RingBuffers&, std::shared_ptr<void> memory)>;

/// Collective over the ring's ranks, with the device current, if chooseDeviceRingBackend() selected copy engines.
std::unique_ptr<RingBackend> makeCopyRingBackend(const std::shared_ptr<Communicator>& comm, const RingBuffers& buffers,
                                                 const MakeCapturable& makeCapturable);

}  // namespace seqpar
