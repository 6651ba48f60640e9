// exchange_ops_threads RANKS [CASES]: the calls of seqpar/exchange.h with ranks as threads of this process.
#include <cstdlib>

#include "common/run_threads.h"
#include "mp/exchange_ops_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  ExchangeOps options;
  if (argc > 2) options.cases = std::atoi(argv[2]);
  return runAsThreads(ranks, ranks,
                      [&](seqparComm_t comm, std::uint64_t seed) { runExchangeOps(comm, seed, options); });
}
