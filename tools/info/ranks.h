// The ranks of seqpar_info: threads of this process, or processes that a launcher has started.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "seqpar/seqpar.h"

namespace seqpar::info {

/// Throws std::runtime_error with the call and the library's error text unless `result` is success.
void require(seqparResult_t result, const char* call, seqparComm_t comm = nullptr);

enum class Launcher { None, Mpi, Environment };

/// The launcher of this process: mpirun, a launcher that sets RANK and WORLD_SIZE, or none.
Launcher launcher();
/// True in the one process that prints; usable before a communicator exists.
bool prints();

/// Creates a communicator in host memory, calls `body` on every rank of this process, and destroys the communicator. If
/// a rank throws, its text goes to stderr and the process (under MPI: the whole job) ends with status 1. `threads`:
/// ranks of a process without a launcher.
void onRanks(int threads, const std::function<void(seqparComm_t)>& body);

/// What all ranks report about themselves, in rank order.
struct Report {
  int node;
  char host[252];
};
/// Collective.
std::vector<Report> gather(const Report& mine, seqparComm_t comm);

}  // namespace seqpar::info
