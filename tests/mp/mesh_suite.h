// Mesh-Attention over the C interface: schedules carried out with real tiles, and the forms without overlap.
#pragma once

#include <cstdint>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Collective. Every shape of the communicator's size, `rounds` times with problems that depend on `seed` alone (equal
/// on all ranks). Throws std::runtime_error at the first wrong number.
void runMeshSuite(seqparComm_t comm, std::uint64_t seed, int rounds);

}  // namespace seqpar::test
