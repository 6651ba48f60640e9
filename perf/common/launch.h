// Starts the ranks of a perf binary: one thread a rank, in as many processes as were launched.
#pragma once

#include <functional>

#include "group.h"
#include "processes.h"
#include "settings.h"

namespace seqpar::perf {

/// Ranks of this process.
int ranksHere(const Settings& settings);

/// Runs `body` on every rank of this process with a communicator made, and frees it. With one rank a process it runs on
/// the calling thread. If a rank throws, its text goes to stderr and the process (under MPI: the whole job) ends with
/// status 1.
void launch(const Settings& settings, const std::function<void(Group&)>& body);

}  // namespace seqpar::perf
