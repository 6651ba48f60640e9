// Scans that run inside the caller's kernels.
#include <array>

#include "api/boundary.h"
#include "base/checked.h"
#include "base/versioned.h"
#include "comm/agreement.h"
#include "seqpar/scan_device.h"

using namespace seqpar;

namespace {

HandleTable<HeadWindow, void*>& windows() {
  return handleTable<HeadWindow, void*>();
}

void checkShape(const char* call, int64_t heads, int64_t elements, int direction) {
  if (heads < 1) fail(seqparInvalidArgument, call, ": heads is ", heads, ", expected at least 1");
  if (elements < 1) fail(seqparInvalidArgument, call, ": elements is ", elements, ", expected at least 1");
  countBytes(call, "the states", {{"heads", heads}, {"elements", elements}, {"bytes", sizeof(float)}});
  if (direction != seqparForward && direction != seqparReverse) {
    fail(seqparInvalidArgument, call, ": direction is ", direction, ", expected ", seqparForward, " or ",
         seqparReverse);
  }
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparScanDeviceCreate(seqparScanDevice_t* scan, int64_t heads, int64_t elements,
                                                 int direction, seqparComm_t handle) {
  const char* call = "seqparScanDeviceCreate";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    // Kernels are compiled with the caller's header, so the structure's size must match exactly.
    const VersionedHead head = checkVersioned(call, "scan", scan);
    if (head.size != sizeof(seqparScanDevice_t)) {
      fail(seqparInvalidArgument, call, ": scan->size is ", head.size, ", expected ", sizeof(seqparScanDevice_t),
           ", as in the header of this version of the library");
    }
    checkShape(call, heads, elements, direction);
    const DeviceGroup* const device = comm.device();
    if (device == nullptr) {
      fail(seqparInvalidUsage, call, ": comm is on host memory, expected a communicator on a CUDA device");
    }
    const std::array<NamedValue, 3> values{{{"heads", heads}, {"elements", elements}, {"direction", direction}}};
    comm.compareNow(call, values);
    if (device->shared() && heads > device->sharedBlocks()) {
      fail(seqparInvalidUsage, call, ": heads is ", heads, ", expected at most ", device->sharedBlocks(),
           ", the blocks that a GPU holds for each of the ranks that share it");
    }
    std::shared_ptr<HeadWindow> window =
        entry.scans.backend().makeHeadWindow(heads, elements, static_cast<seqparDirection_t>(direction));
    *scan = window->view();
    scan->owner = windows().add(std::move(window));
  });
}

SEQPAR_API seqparResult_t seqparScanDeviceDestroy(seqparScanDevice_t* scan) {
  const char* call = "seqparScanDeviceDestroy";
  return atBoundary(call, [&] {
    checkVersioned(call, "scan", scan);
    if (scan->owner == nullptr || !windows().remove(scan->owner)) {
      fail(seqparInvalidArgument, call,
           ": scan is not a valid handle, expected one that seqparScanDeviceCreate() has filled");
    }
    *scan = SEQPAR_SCAN_DEVICE_INITIALIZER;
  });
}

}  // extern "C"
