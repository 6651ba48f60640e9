// Zeros where a route brings nothing.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/route.h"

namespace seqpar {

void clearOnHost(std::span<const StridedRegion> regions, std::span<std::byte* const> buffers);

}  // namespace seqpar
