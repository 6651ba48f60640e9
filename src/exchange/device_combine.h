// Launching the kernels that combine what lies ready on one GPU.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/group.h"
#include "kernels/exchange/lse_args.h"
#include "kernels/exchange/payload.h"
#include "seqpar/seqpar.h"

namespace seqpar {

/// A region and its terms, each as long as the region.
struct ReadySum {
  device::RegionArg region{};
  bool existing = false;                ///< what stands there is the first term
  std::vector<const std::byte*> terms;  ///< in their order
};

/// Adds all sums, each after those before it that it may overlap. With `lse`, whose rows are not 0, it merges the
/// logarithms, and the outputs, which are the terms of the only sum, one a member; no sum if rows have no bytes.
void launchSums(std::span<const ReadySum> sums, seqparDataType_t type, int processors, DeviceStream stream,
                const device::LseArgs& lse = {});

}  // namespace seqpar
