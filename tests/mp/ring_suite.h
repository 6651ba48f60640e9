// Rings and shifts on a live communicator: random forms, with each byte checked where a caller would use it.
#pragma once

#include <cstdint>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Collective. All factorizations into double rings; then `rounds` random rings of all or some ranks; then a schedule
/// of helpers by shifts. Depends on `seed` alone (equal on all ranks). Throws std::runtime_error at the first wrong
/// byte.
void runRingSuite(seqparComm_t comm, std::uint64_t seed, int rounds);

}  // namespace seqpar::test
