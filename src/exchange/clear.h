// Zeros where a route brings nothing.
#pragma once

#include <cstddef>
#include <span>

#include "device/group.h"
#include "exchange/route.h"

namespace seqpar {

void clearOnHost(std::span<const StridedRegion> regions, std::span<std::byte* const> buffers);

/// Enqueues it on `stream`.
void clearOnDevice(std::span<const StridedRegion> regions, std::span<std::byte* const> buffers, DeviceStream stream);

}  // namespace seqpar
