// mesh_threads RANKS [ROUNDS]: the suite with ranks as threads of this process.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "common/ranks.h"
#include "mesh_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto errors = onCommunicator(ranks, [&](seqparComm_t comm, int) {
    try {
      runMeshSuite(comm, seed, rounds);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
  });
  std::printf("%s", errors.empty() ? "all right\n" : errors.c_str());
  return errors.empty() ? 0 : 1;
}
