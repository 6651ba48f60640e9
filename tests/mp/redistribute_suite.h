// Redistribution and groups through the public interface on a live communicator.
#pragma once

#include <cstdint>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Collective. Moves tensors between all pairs of kinds of layouts and then between `rounds` random pairs, which depend
/// on `seed` alone (equal on all ranks): packed and not, of uneven and tiny lengths, several tensors, with and without
/// a stream; each there and back. Throws std::runtime_error at the first wrong byte.
void runRedistributeSuite(seqparComm_t comm, std::uint64_t seed, int rounds);

/// Collective: splits `comm` by a grid that fits it, and redistributes within each group.
void runGroupsSuite(seqparComm_t comm, std::uint64_t seed);

}  // namespace seqpar::test
