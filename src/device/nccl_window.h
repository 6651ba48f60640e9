// NCCL's symmetric windows ("LSA") as memory that peers reach by load and store.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "device/group.h"

namespace seqpar {

/// Collective over all ranks of `comm` (a whole communicator, no subset), not during a capture: `bytes` of device
/// memory of everybody, zeroed, mapped by everybody; peer numbers are ranks. Probed, never assumed: null on all ranks,
/// and `why` in words, where NCCL cannot do it. Registered without multicast. Must be freed by all ranks together,
/// before `comm`.
std::unique_ptr<PeerWindow> makeNcclWindow(NcclComm& comm, std::size_t bytes, std::string& why);

}  // namespace seqpar
