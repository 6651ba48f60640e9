// Launches of the kernels that combine terms in the memory of one GPU.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/group.h"
#include "kernels/exchange/lse_args.h"
#include "kernels/exchange/payload.h"
#include "seqpar/seqpar.h"

namespace seqpar {

/// A region and its terms; each term has the region's length.
struct ReadySum {
  device::RegionArg region{};
  bool existing = false;                ///< the region's present contents are the first term
  std::vector<const std::byte*> terms;  ///< in order of addition
};

/// Computes all sums; sums that may overlap are added in list order. With a nonempty `lse`, merges the log-sum-exps and
/// the outputs: the outputs are the terms of the only sum, one per member. Without any sum if rows have no bytes.
void launchSums(std::span<const ReadySum> sums, seqparDataType_t type, int smCount, DeviceStream stream,
                const device::LseArgs& lse = {});

}  // namespace seqpar
