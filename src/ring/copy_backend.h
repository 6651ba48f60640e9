// The ring backend of GPUs that reach each other's memory, for large tensors: copy engines move them, so that the
// caller's computation keeps every SM.
#pragma once

#include <functional>
#include <memory>

#include "ring/backend.h"

namespace seqpar {

/// Makes the backend that posts while the caller's stream is captured, out of buffers that all exist, and keeps what
/// they lie in.
using MakeCapturable = std::function<std::unique_ptr<RingBackend>(const RingBuffers&, std::shared_ptr<void> memory)>;

/// Collective over the ring's ranks, with the device current, where chooseDeviceRingBackend() says so.
std::unique_ptr<RingBackend> makeCopyRingBackend(const std::shared_ptr<Communicator>& comm, const RingBuffers& buffers,
                                                 const MakeCapturable& makeCapturable);

}  // namespace seqpar
