// How the program becomes several ranks.
#pragma once

#include <functional>

#include "seqpar/seqpar.h"

/// What one rank does: returns the program's exit status.
using RankMain = std::function<int(seqparComm_t)>;

/// Runs `rankMain` on every rank and returns the greatest exit status of this process's ranks: under mpirun, one rank a
/// process; with RANK and WORLD_SIZE in the environment (torchrun), the same; else `threads` threads of this process.
int launch(int threads, const RankMain& rankMain);

/// "mpirun", "environment" or "threads": what launch() does.
const char* launchedBy();
