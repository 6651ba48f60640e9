// One rank's part of a trial of the campaign.
#pragma once

#include "survivors.h"
#include "trial.h"

namespace seqpar::test {

/// The exit status of a rank in which an exception had no handler.
constexpr int kTerminated = 77;

/// Calls until one fails, then continues on a new communicator. Reports the first failure, or what went wrong later as
/// InternalError. Destroys or aborts `comm`. `ids` is a pipe for a unique id between the survivors.
void runRank(const Trial& trial, const int (&ids)[2], seqparComm_t comm, Report& report);

}  // namespace seqpar::test
