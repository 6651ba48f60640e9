// The ring engine of GPUs that reach each other's memory, for large tensors: copy engines move them, so that the
// caller's computation keeps every multiprocessor.
#pragma once

#include <functional>
#include <memory>

#include "ring/engine.h"

namespace seqpar {

/// Makes the engine that posts while the caller's stream is captured, out of buffers that all exist.
using MakeCapturable = std::function<std::unique_ptr<RingEngine>(const RingBuffers&)>;

/// Collective over the ring's ranks, with the device current. Null on all of them where this engine is not for the
/// ring: the environment of some rank does not ask for it; not all ranks of the communicator are in it, or reach each
/// other; tensors are small, or arrive in the memory of some rank's caller; or ranks of one process share a GPU.
std::unique_ptr<RingEngine> makeCopyRingEngine(const std::shared_ptr<Communicator>& comm, const RingBuffers& buffers,
                                               const MakeCapturable& makeCapturable);

}  // namespace seqpar
