#include "launch.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

#include "ranks.h"
#ifdef EXAMPLE_HAS_MPI
#include "seqpar/seqpar_mpi.h"
#endif

namespace {

enum class Launcher { Mpi, Environment, Threads };

Launcher launcher() {
#ifdef EXAMPLE_HAS_MPI
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return Launcher::Mpi;
  }
#endif
  return std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr ? Launcher::Environment
                                                                                : Launcher::Threads;
}

/// Runs one rank. On failure it ends the communicator, so that the other ranks do not wait.
int runRank(seqparComm_t comm, const RankMain& rankMain) {
  try {
    const int status = rankMain(comm);
    require(seqparCommDestroy(std::exchange(comm, nullptr)));
    return status;
  } catch (const std::exception& error) {
    std::cerr << "gla_text: " << error.what() << '\n';
    seqparCommAbort(comm);
    return 3;
  }
}

}  // namespace

const char* launchedBy() {
  switch (launcher()) {
    case Launcher::Mpi:
      return "mpirun";
    case Launcher::Environment:
      return "environment";
    case Launcher::Threads:
      break;
  }
  return "threads";
}

int launch(int threads, const RankMain& rankMain) {
  seqparComm_t comm = nullptr;
#ifdef EXAMPLE_HAS_MPI
  if (launcher() == Launcher::Mpi) {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    require(seqparCommInitMPI(&comm, MPI_COMM_WORLD, nullptr));
    const int status = runRank(comm, rankMain);
    MPI_Finalize();
    return status;
  }
#endif
  if (launcher() == Launcher::Environment) {
    require(seqparCommInitEnv(&comm, nullptr));
    return runRank(comm, rankMain);
  }
  std::vector<seqparComm_t> comms(static_cast<size_t>(threads));
  require(seqparCommInitAll(comms.data(), threads, nullptr));
  std::vector<int> statuses(comms.size());
  std::vector<std::thread> running;
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    running.emplace_back([&, rank] { statuses[rank] = runRank(comms[rank], rankMain); });
  }
  for (auto& thread : running) thread.join();
  return *std::max_element(statuses.begin(), statuses.end());
}
