// scan_threads RANKS [RANKS_A_NODE]: the suite with ranks as threads of this process.
#include <cstdlib>

#include "common/run_threads.h"
#include "mp/exchange_suite.h"
#include "mp/scan_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  return runAsThreads(ranks, argc > 2 ? std::atoi(argv[2]) : ranks, [](seqparComm_t comm, std::uint64_t seed) {
    runScanSuite(comm, seed, 120);
    runExchangeSuite(comm, seed, 25);
  });
}
