// NCCL's symmetric windows ("LSA") as memory that peers reach by load and store.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "device/group.h"

namespace seqpar {

/// Collective over all ranks of `comm` (a whole communicator, not a subset), not during a capture: `bytes` of
/// zero-filled device memory per rank, mapped by every rank; peer numbers are ranks. Support is probed: returns null on
/// all ranks, with the reason in `why`, if NCCL does not support it. Registered without multicast. All ranks must free
/// the window together, before `comm`.
std::unique_ptr<PeerWindow> makeNcclWindow(NcclComm& comm, std::size_t bytes, std::string& why);

}  // namespace seqpar
