// Neighbor exchange on hosts: send to one rank while receiving from another.
#pragma once

#include <cstddef>
#include <span>

#include "transport/mailbox.h"

namespace seqpar {

/// Maximum number of flows per call, and of tensors per flow each way.
inline constexpr size_t kMostFlows = 2, kMostTensors = 64;

/// Tensors to send to one rank and tensors to receive from another, each in list order. Peers are ranks other than this
/// one, or SEQPAR_NO_PEER; then the list is ignored.
struct Flow {
  int to;
  std::span<const std::span<const std::byte>> out;
  int from;
  std::span<const std::span<std::byte>> in;
};

/// All flows concurrently, at most kMostFlows; no two of them send to one rank or receive from one rank. Every flow's
/// list matches a list of equal lengths at its peer; tensors of 0 bytes count. The receive buffers of a flow overlap no
/// other buffer.
void exchangeFlows(Mailbox& mail, std::span<const Flow> flows);

}  // namespace seqpar
