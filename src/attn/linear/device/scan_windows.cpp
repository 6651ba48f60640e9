#include "attn/linear/device/scan_windows.h"

#include <algorithm>

#include "attn/boundary.h"
#include "attn/linear/device/check.h"

namespace seqpar::attn::linear {
namespace {

/// CTAs that wait for other ranks on a shared GPU: the scans of all its ranks together leave most SMs to other work.
constexpr int kSharedCtas = 64;

}  // namespace

void ScanWindows::Destroy::operator()(seqparScanDevice_t* scan) const {
  if (scan->owner != nullptr) seqparScanDeviceDestroy(scan);
  delete scan;
}

std::optional<ScanWindows> openWindows(seqparComm_t comm, int64_t heads, int64_t elements, bool both) {
  ScanWindows windows;
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(comm, &info), kDeviceWho, comm);
  if (info.sharing > 1) windows.ctas_ = std::max(1, kSharedCtas / info.sharing);
  for (const auto direction : {seqparForward, seqparReverse}) {
    if (direction == seqparReverse && !both) break;
    auto& scan = windows.scans_[direction];
    scan = ScanWindows::Handle(new seqparScanDevice_t SEQPAR_SCAN_DEVICE_INITIALIZER);
    const auto result = seqparScanDeviceCreate(scan.get(), heads, elements, direction, comm);
    if (result == seqparInvalidUsage) return std::nullopt;  // on all ranks
    require(result, kDeviceWho, comm);
  }
  return windows;
}

}  // namespace seqpar::attn::linear
