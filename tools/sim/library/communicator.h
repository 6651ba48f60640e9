// A simulated rank's communicator, created without other ranks.
#pragma once

#include "seqpar/seqpar.h"

namespace seqpar::sim {

/// The communicator of the current recorder's rank; destroy it with seqparCommDestroy().
seqparComm_t makeCommunicator();

}  // namespace seqpar::sim
