// Reductions on GPUs: an exchange gathers the terms, then a kernel adds them.
#pragma once

#include <cstddef>
#include <span>

#include "device/group.h"
#include "exchange/device_exchanges.h"
#include "exchange/lse.h"
#include "exchange/reduction.h"

namespace seqpar {

/// Enqueues one rank's part of a reduction of elements of `type` on `stream`; to be called from DeviceGroup::enqueue().
/// Otherwise as reduceOnHost().
void reduceOnDevice(const DeviceExchanges& by, DeviceGroup& group, const Reduction& reduction, seqparDataType_t type,
                    std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers,
                    DeviceStream stream);

/// reduceLseOnHost() on a GPU, from DeviceGroup::enqueue().
void reduceLseOnDevice(const DeviceExchanges& by, DeviceGroup& group, const LseReduction& given, DeviceStream stream);

}  // namespace seqpar
