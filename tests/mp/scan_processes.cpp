// scan_processes mpi|environment, under mpirun: the suite with ranks as processes, bootstrapped by MPI or by the
// variables that torchrun sets.
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "common/run_processes.h"
#include "mp/exchange_suite.h"
#include "mp/scan_suite.h"

using namespace seqpar::test;

namespace {

/// The launcher's numbers as torchrun would hand them over; the port is drawn by rank 0.
seqparComm_t initByEnvironment() {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
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

}  // namespace

int main(int argc, char** argv) {
  const bool byEnvironment = argc > 1 && std::strcmp(argv[1], "environment") == 0;
  const auto suite = [](seqparComm_t comm, std::uint64_t seed) {
    runScanSuite(comm, seed, 120);
    runExchangeSuite(comm, seed, 25);
  };
  return byEnvironment ? runAsProcesses(suite, initByEnvironment) : runAsProcesses(suite);
}
