// All parts of the library in turn on the same communicators, in random order, with every result checked.
#pragma once

#include <cstdint>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Collective. Runs for about `seconds`, in an order that depends on `seed` alone (equal on all ranks), on `world`, on
/// halves of it and on groups of its grid: scans, shifts, exchanges and halos, redistributions, mesh steps, rings of
/// all forms, rings that stay open with other calls between post and wait, splits, and, if the backend supports graphs,
/// captured rounds that are replayed with new inputs each time. Throws std::runtime_error with the seed and the turn at
/// the first wrong result. Rank 0 prints how often each part was used.
void runSoak(seqparComm_t world, std::uint64_t seed, int seconds);

}  // namespace seqpar::test
