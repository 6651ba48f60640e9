// Launching the kernels of exchanges.
#pragma once

#include <span>
#include <vector>

#include "device/group.h"
#include "exchange/device_strings.h"

namespace seqpar {

/// The most pieces of a kernel's parameter, which a graph can keep.
constexpr int kMostInlinePieces = 256;

/// One exchange between peers: the strings' `peer` are peer numbers. `receives` has its pieces numbered behind those of
/// `sends`.
void launchRoute(const PeerView& view, const DeviceStrings& sends, const DeviceStrings& receives, DeviceStream stream);

/// Copies strings into `memory[i]`, or back; `strings[i]` counts in `pieces`.
void launchStrings(bool gather, std::span<const device::StringArg> strings, std::span<std::byte* const> memory,
                   std::span<const device::PieceArg> pieces, DeviceStream stream);

}  // namespace seqpar
