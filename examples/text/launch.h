// Starts the ranks of the program.
#pragma once

#include <functional>

#include "seqpar/seqpar.h"

/// The work of one rank; returns the exit status of the program.
using RankMain = std::function<int(seqparComm_t)>;

/// Runs `rankMain` on every rank and returns the greatest exit status of this process's ranks: under mpirun, or with
/// RANK and WORLD_SIZE in the environment (torchrun), one rank per process; else `threads` threads of this process.
int launch(int threads, const RankMain& rankMain);

/// The mode of launch(): "mpirun", "environment" or "threads".
const char* launchedBy();
