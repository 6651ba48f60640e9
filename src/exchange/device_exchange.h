// Routes on GPUs: through byte FIFOs between peers, through NCCL to other ranks.
#pragma once

#include <cstddef>
#include <span>

#include "device/group.h"
#include "exchange/device_payloads.h"
#include "exchange/route.h"

namespace seqpar {

/// Enqueues one rank's part of an exchange on `stream`; to be called from DeviceGroup::enqueue(). Buffers are in memory
/// that the device can address; send and receive buffers do not overlap. Routes of up to 256 regions may be captured
/// into a graph; InvalidUsage for longer routes during a capture.
void exchangeOnDevice(DeviceGroup& group, const Route& route, std::span<const std::byte* const> sendBuffers,
                      std::span<std::byte* const> receiveBuffers, DeviceStream stream);

/// The payloads to and from other ranks, by NCCL; only in builds with NCCL.
void exchangeByNccl(DeviceGroup& group, const DevicePayloads& sends, const DevicePayloads& receives,
                    DeviceStream stream);

}  // namespace seqpar
