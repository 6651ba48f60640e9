// The main function of a suite with ranks as processes under mpirun.
#pragma once

#include "common/draw_seed.h"
#include "common/run_threads.h"
#include "seqpar/seqpar_mpi.h"

namespace seqpar::test {

inline seqparComm_t initByMpi() {
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.timeoutMs = kNoTimeoutMs;
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitMPI(&comm, MPI_COMM_WORLD, &config), "seqparCommInitMPI");
  return comm;
}

/// Runs `suite` on the communicator that `init` creates. Returns the exit status; a failure ends all processes.
inline int runAsProcesses(const Suite& suite, const std::function<seqparComm_t()>& init = initByMpi) {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  unsigned long long seed = seqpar::test::drawSeed();
  MPI_Bcast(&seed, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("seed %llu\n", seed);
  try {
    auto* const comm = init();
    suite(comm, seed);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  } catch (const std::exception& error) {
    std::printf("rank %d: %s\n", rank, error.what());
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  if (rank == 0) std::printf("all right\n");
  return 0;
}

}  // namespace seqpar::test
