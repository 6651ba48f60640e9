// In a build without CUDA there are no device communicators.
#include "base/error.h"
#include "mesh/device_steps.h"

namespace seqpar {

void reduceOutputsOnDevice(DeviceGroup&, const OutputStep&, DeviceStream) {
  fail(seqparInternalError, "a mesh on a device in a build without CUDA");
}

void reduceSumsOnDevice(DeviceGroup&, const SumStep&, DeviceStream) {
  fail(seqparInternalError, "a mesh on a device in a build without CUDA");
}

}  // namespace seqpar
