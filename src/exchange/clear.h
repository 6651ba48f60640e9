// Zero-fills regions that a route does not write.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/route.h"

namespace seqpar {

void clearOnHost(std::span<const StridedRegion> regions, std::span<std::byte* const> buffers);

}  // namespace seqpar
