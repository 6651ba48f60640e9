// Launching the kernels that combine what lies ready on one GPU.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/group.h"
#include "exchange/strings.h"
#include "seqpar/seqpar.h"

namespace seqpar {

/// A region and its terms, each as long as the region.
struct ReadySum {
  device::PieceArg piece{};
  bool existing = false;                ///< what stands there is the first term
  std::vector<const std::byte*> terms;  ///< in their order
  std::vector<const float*> factors;    ///< one a term, or none
  std::size_t row = 0;                  ///< of the region's first element, for the factors
};

/// Adds all sums, each after those before it that it may overlap. `rowBytes` as the factors count; 0 without factors.
void launchSums(std::span<const ReadySum> sums, seqparDataType_t type, std::size_t rowBytes, int processors,
                DeviceStream stream);

/// From parts [members][outer][heads][tokens]: merged [outer][heads][tokens] and factors
/// [members][outer][tokens][heads].
void launchLseMerge(const float* parts, float* merged, float* factors, int members, std::size_t outer,
                    std::size_t heads, std::size_t tokens, DeviceStream stream);

}  // namespace seqpar
