// In a build without CUDA there are no device communicators.
#include "base/error.h"
#include "scan/plan/device_plan.h"

namespace seqpar {

std::unique_ptr<DevicePlan> makeDevicePlan(Communicator&) {
  fail(seqparInternalError, "a plan for a device in a build without CUDA");
}

void runScanOnDevice(Communicator&, const ScanProblem&, const seqparScanEstimate_t&, DeviceStream) {
  fail(seqparInternalError, "a scan on a device in a build without CUDA");
}

}  // namespace seqpar
