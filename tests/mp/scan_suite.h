// All-Scan through the public interface on a live communicator: many random cases, each checked against the fp64
// reference.
#pragma once

#include <cstdint>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Collective. Runs `cases` cases that depend on `seed` alone (equal on all ranks): every operator, direction, type,
/// algorithm, flags, uneven shapes, block counts, in place, with and without a stream. Throws std::runtime_error with
/// the case and the seed at the first wrong element.
void runScanSuite(seqparComm_t comm, std::uint64_t seed, int cases);

}  // namespace seqpar::test
