// exchange_ops_processes [CASES], under mpirun: the calls of seqpar/exchange.h with ranks as processes.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "common/ranks.h"
#include "exchange_ops_suite.h"
#include "seqpar/seqpar_mpi.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  unsigned long long seed = std::random_device{}();
  MPI_Bcast(&seed, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("seed %llu\n", seed);
  ExchangeOps options;
  if (argc > 1) options.cases = std::atoi(argv[1]);
  try {
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitMPI(&comm, MPI_COMM_WORLD, nullptr), "seqparCommInitMPI");
    runExchangeOps(comm, seed, options);
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
