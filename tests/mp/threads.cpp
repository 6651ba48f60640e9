// mp_threads SUITE RANKS [RANKS_A_NODE [ROUNDS]]: a suite with ranks as threads of this process.
#include <cstdlib>

#include "common/run_threads.h"
#include "mp/shared_backend.h"
#include "mp/suites.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  try {
    shareBuffers();
    const NamedSuite& suite = suiteCalled(argc > 1 ? argv[1] : "");
    const int ranks = argc > 2 ? std::atoi(argv[2]) : 2;
    const int ranksOfNode = argc > 3 ? std::atoi(argv[3]) : ranks;
    const int rounds = argc > 4 ? std::atoi(argv[4]) : suite.rounds;
    return runAsThreads(ranks, ranksOfNode,
                        [&](seqparComm_t comm, std::uint64_t seed) { suite.run(comm, seed, rounds); });
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
