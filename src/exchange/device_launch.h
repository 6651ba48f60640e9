// Launching the kernels of exchanges.
#pragma once

#include <span>
#include <vector>

#include "device/group.h"
#include "exchange/device_payloads.h"

namespace seqpar {

/// One exchange between peers: the payloads' `peer` are peer numbers. `receives` has its regions numbered behind those
/// of `sends`.
void launchRoute(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives,
                 DeviceStream stream);

/// Copies payloads into `memory[i]`, or back; `payloads[i]` counts in `regions`.
void launchPayloads(bool gather, std::span<const device::PeerPayload> payloads, std::span<std::byte* const> memory,
                    std::span<const device::RegionArg> regions, DeviceStream stream);

}  // namespace seqpar
