#pragma once

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Gradients: every holder adds a rank-specific value before it passes the tensor on, in step with a ring of tensors
/// that do not change.
void runRingGradients(seqparComm_t comm, int rank, int ranks, int inner);

}  // namespace seqpar::test
