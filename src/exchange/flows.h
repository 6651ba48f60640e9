// Neighbor exchange on hosts: send to one rank while receiving from another.
#pragma once

#include <cstddef>
#include <span>

#include "transport/mailbox.h"

namespace seqpar {

/// The most flows of one call, and tensors of one flow each way.
inline constexpr size_t kMostFlows = 2, kMostTensors = 64;

/// Tensors that go to one rank and tensors that come from another, each in the order of the list. Peers are ranks other
/// than this one, or SEQPAR_NO_PEER; then the list means nothing.
struct Flow {
  int to;
  std::span<const std::span<const std::byte>> out;
  int from;
  std::span<const std::span<std::byte>> in;
};

/// All flows at once, at most kMostFlows, of which no two send to, or receive from, one rank. Every flow's list meets a
/// list of the same lengths at its peer; tensors of 0 bytes count. No two flows' receives overlap anything.
void exchangeFlows(Mailbox& mail, std::span<const Flow> flows);

}  // namespace seqpar
