// Zero-fills regions that a route does not write, on GPUs.
#pragma once

#include <cstddef>
#include <span>

#include "device/group.h"
#include "exchange/route.h"

namespace seqpar {

/// clearOnHost() for memory of the current device, enqueued on `stream`.
void clearOnDevice(std::span<const StridedRegion> regions, std::span<std::byte* const> buffers, DeviceStream stream);

}  // namespace seqpar
