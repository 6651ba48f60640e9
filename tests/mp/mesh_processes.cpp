// mesh_processes [ROUNDS], under mpirun: the suite with ranks as processes.
#include <cstdlib>

#include "common/run_processes.h"
#include "mp/mesh_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  return runAsProcesses([&](seqparComm_t comm, std::uint64_t seed) { runMeshSuite(comm, seed, rounds); });
}
