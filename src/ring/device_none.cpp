// In a build without CUDA there are no device communicators.
#include "base/error.h"
#include "ring/device_backend.h"

namespace seqpar {

RingChoice chooseDeviceRingBackend(Communicator&, const RingBuffers&) {
  fail(seqparInternalError, "a ring on a device in a build without CUDA");
}

std::unique_ptr<RingBackend> makeDeviceRingBackend(const std::shared_ptr<Communicator>&, const RingBuffers&,
                                                   const RingChoice&) {
  fail(seqparInternalError, "a ring on a device in a build without CUDA");
}

}  // namespace seqpar
