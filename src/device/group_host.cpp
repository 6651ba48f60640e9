#include "base/error.h"
#include "device/device.h"
#include "device/group.h"

namespace seqpar {

std::unique_ptr<DeviceGroup> makeDeviceGroup(Allgather&, const DeviceOptions& options, Health&) {
  fail(seqparInvalidUsage, "device ", options.device, " was asked for, but this library was ", deviceReport(),
       "; expected SEQPAR_HOST_DEVICE");
}

}  // namespace seqpar
