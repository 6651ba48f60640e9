// redistribute_threads RANKS: the suite with ranks as threads of this process.
#include <cstdlib>

#include "common/run_threads.h"
#include "mp/redistribute_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  return runAsThreads(ranks, ranks, [](seqparComm_t comm, std::uint64_t seed) {
    runRedistributeSuite(comm, seed, 60);
    runGroupsSuite(comm, seed);
  });
}
