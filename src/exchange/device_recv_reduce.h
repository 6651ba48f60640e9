// Receives long terms from peers and adds them straight out of the byte FIFOs, without a buffer for terms.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "device/group.h"
#include "exchange/device_payloads.h"
#include "exchange/reduction.h"

namespace seqpar {

/// A sum, and this rank's sends.
struct RecvReduce {
  DevicePayloads sends, receives;
  device::RegionArg region{};
  bool existing = false;
  std::vector<int> from;           ///< peer numbers, -1 for this rank, in the order of the terms
  const std::byte* own = nullptr;  ///< this rank's term
};

/// `sum` is the only sum of a reduction, so its terms are everything that this rank receives; its region is in
/// `buffer`. `own`: this rank's term, null unless it is one run. Returns nothing if this rank cannot use this path;
/// other ranks choose independently.
std::optional<RecvReduce> planRecvReduce(DeviceGroup& group, std::span<const Transfer> sends,
                                         std::span<const std::byte* const> sendBuffers, const Sum& sum,
                                         std::byte* buffer, const std::byte* own);

/// Sends, receives and adds.
void launchRecvReduce(const PeerView& view, const RecvReduce& sum, seqparDataType_t type, DeviceStream stream);

}  // namespace seqpar
