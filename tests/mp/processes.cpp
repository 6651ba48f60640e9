// mp_processes SUITE [ROUNDS [environment]], under mpirun: a suite with ranks as processes, which are bootstrapped by
// MPI, or by the variables that torchrun sets.
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "common/reserved_port.h"
#include "common/run_processes.h"
#include "mp/shared_backend.h"
#include "mp/suites.h"

using namespace seqpar::test;

namespace {

/// Initializes from the launcher's ranks as torchrun's variables; the port is rank 0's.
seqparComm_t initByEnvironment() {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::optional<ReservedPort> reserved;
  if (rank == 0) reserved.emplace();
  int port = reserved ? reserved->number() : 0;
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
  try {
    shareBuffers();
    const NamedSuite& suite = suiteCalled(argc > 1 ? argv[1] : "");
    const int rounds = argc > 2 ? std::atoi(argv[2]) : suite.rounds;
    const bool byEnvironment = argc > 3 && std::strcmp(argv[3], "environment") == 0;
    const auto run = [&](seqparComm_t comm, std::uint64_t seed) { suite.run(comm, seed, rounds); };
    return byEnvironment ? runAsProcesses(run, initByEnvironment) : runAsProcesses(run);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
