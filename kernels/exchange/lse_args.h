// Arguments of weighted sums of softmax results, for kernels and for the host code that launches them.
#pragma once

#include <cstdint>

#include "kernels/fifo_layout.h"

namespace seqpar::device {

/// The terms of a sum, one per member, have a weight per row, computed from their lse.
struct LseArgs {
  const float* parts = nullptr;  ///< [members][outer][heads][tokens]
  float* merged = nullptr;       ///< [outer][heads][tokens], written here
  int members = 0;
  std::uint64_t rows = 0;  ///< outer x heads x tokens; 0: unweighted sums
  std::uint64_t tokens = 0, heads = 0;
  std::uint64_t rowBytes = 0;  ///< of the region [outer][tokens][heads][rowBytes]

  SEQPAR_BOTH float at(int member, std::uint64_t row) const {
    return parts[static_cast<std::uint64_t>(member) * rows + row];
  }
};

}  // namespace seqpar::device
