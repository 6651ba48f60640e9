// Layers of linear attention, one after the other, until something goes wrong.
#pragma once

#include "survivors.h"

namespace seqpar::test {

/// Forward and backward of a layer whose results are whole numbers, again and again. Wrong ones are counted.
void layersUntilFailure(seqparComm_t comm, Report& report);

}  // namespace seqpar::test
