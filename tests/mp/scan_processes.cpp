// scan_processes mpi|environment, under mpirun: the suite with ranks as processes, bootstrapped by MPI or by the
// variables that torchrun sets.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "common/ranks.h"
#include "exchange_suite.h"
#include "scan_suite.h"
#include "seqpar/seqpar_mpi.h"

using namespace seqpar::test;

namespace {

/// The launcher's numbers as torchrun would hand them over; the port is drawn by rank 0.
seqparComm_t initByEnvironment(int rank, int ranks) {
  int port = 20000 + static_cast<int>(std::random_device{}() % 20000);
  MPI_Bcast(&port, 1, MPI_INT, 0, MPI_COMM_WORLD);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitEnv(&comm, nullptr), "seqparCommInitEnv");
  return comm;
}

seqparComm_t initByMpi() {
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitMPI(&comm, MPI_COMM_WORLD, nullptr), "seqparCommInitMPI");
  return comm;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  unsigned long long seed = std::random_device{}();
  MPI_Bcast(&seed, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("seed %llu\n", seed);
  try {
    auto* const comm =
        argc > 1 && std::strcmp(argv[1], "environment") == 0 ? initByEnvironment(rank, ranks) : initByMpi();
    runScanSuite(comm, seed, 120);
    runExchangeSuite(comm, seed, 25);
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
