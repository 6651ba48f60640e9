// Starts the ranks of a perf binary: one thread per rank, in the launched processes.
#pragma once

#include <functional>

#include "group.h"
#include "processes.h"
#include "settings.h"

namespace seqpar::perf {

/// Number of ranks of this process.
int ranksHere(const Settings& settings);

/// Creates a communicator, runs `body` on every rank of this process, and destroys the communicator. With one rank per
/// process, the body runs on the calling thread. If a rank throws, its text goes to stderr and the process (under MPI:
/// the whole job) ends with status 1.
void launch(const Settings& settings, const std::function<void(Group&)>& body);

}  // namespace seqpar::perf
