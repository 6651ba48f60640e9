// Sums of long terms from peers, made out of the byte FIFOs: no term is stored where it is to be added.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "device/group.h"
#include "exchange/device_payloads.h"
#include "exchange/reduction.h"

namespace seqpar {

/// A sum, and what this rank sends to others.
struct RecvReduce {
  DevicePayloads sends, receives;
  device::RegionArg region{};
  bool existing = false;
  std::vector<int> from;           ///< peers' numbers, -1 for this rank, in the order of their terms
  const std::byte* own = nullptr;  ///< this rank's term
};

/// `sum` is the only one of a reduction, so its terms are all that comes; its region lies in `buffer`. `own`: this
/// rank's own term, if that lies in one run. Nothing if this way is not open on this rank: other ranks may go another.
std::optional<RecvReduce> planRecvReduce(DeviceGroup& group, std::span<const Transfer> sends,
                                         std::span<const std::byte* const> sendBuffers, const Sum& sum,
                                         std::byte* buffer, const std::byte* own);

/// Sends, receives and adds.
void launchRecvReduce(const PeerView& view, const RecvReduce& sum, seqparDataType_t type, DeviceStream stream);

}  // namespace seqpar
