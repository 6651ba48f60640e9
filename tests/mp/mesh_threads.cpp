// mesh_threads RANKS [ROUNDS]: the suite with ranks as threads of this process.
#include <cstdlib>

#include "common/run_threads.h"
#include "mp/mesh_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  return runAsThreads(ranks, ranks, [&](seqparComm_t comm, std::uint64_t seed) { runMeshSuite(comm, seed, rounds); });
}
