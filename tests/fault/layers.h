// Layers of linear attention, one after the other, until something goes wrong.
#pragma once

#include "survivors.h"

namespace seqpar::test {

/// Repeats forward and backward of a layer with integer results until a failure. Counts wrong results.
void layersUntilFailure(seqparComm_t comm, Report& report);

}  // namespace seqpar::test
