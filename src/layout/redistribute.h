// Routes from one layout to another.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/route.h"
#include "layout/layout.h"

namespace seqpar {

/// A tensor [outer][local tokens][rowBytes] on each rank.
struct RowTensor {
  std::size_t outer = 1;
  std::size_t rowBytes = 0;
};

/// The sends and receives of `rank` that convert tensors (buffers 0, 1, ... on either side) from one layout to another
/// with equal numbers of ranks and tokens.
Route redistributeRoute(const Layout& from, const Layout& to, std::span<const RowTensor> tensors, int rank);

}  // namespace seqpar
