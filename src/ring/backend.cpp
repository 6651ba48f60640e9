#include "ring/backend.h"

#include <utility>

#include "ring/device_backend.h"

namespace seqpar {

// A branch that is absent from a build is discarded, so the functions that it names need not exist.
RingChoice chooseRingBackend(Communicator& comm, const RingBuffers& buffers) {
  if constexpr (SEQPAR_HAS_CUDA) {
    if (comm.device() != nullptr) return chooseDeviceRingBackend(comm, buffers);
  }
  return {false, false, "the ranks' memory is the host's"};
}

std::unique_ptr<RingBackend> makeRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers,
                                             const RingChoice& choice) {
  if constexpr (SEQPAR_HAS_CUDA) {
    if (comm->device() != nullptr) return makeDeviceRingBackend(comm, buffers, choice);
  }
  return makeHostRingBackend(std::move(comm), buffers);
}

}  // namespace seqpar
