// A communicator's description for seqparCommQuery() and for the log.
#pragma once

#include "comm/communicator.h"

namespace seqpar {

seqparCommInfo_t describe(Communicator& comm);

/// Logs describe() at SEQPAR_DEBUG=INFO.
void logCreated(Communicator& comm);

}  // namespace seqpar
