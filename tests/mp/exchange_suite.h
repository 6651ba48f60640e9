// seqparSendRecv on a live communicator: shifts of random lengths, each byte checked.
#pragma once

#include <cstdint>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Collective. Runs `rounds` shifts that depend only on `seed` (equal on all ranks): any stride, a different length for
/// every rank, small and large ones mixed, open chains and closed rings, with and without a stream. Throws
/// std::runtime_error at the first wrong byte.
void runExchangeSuite(seqparComm_t comm, std::uint64_t seed, int rounds);

}  // namespace seqpar::test
