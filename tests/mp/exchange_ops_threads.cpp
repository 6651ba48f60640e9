// exchange_ops_threads RANKS [CASES]: the calls of seqpar/exchange.h with ranks as threads of this process.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "common/ranks.h"
#include "exchange_ops_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  ExchangeOps options;
  if (argc > 2) options.cases = std::atoi(argv[2]);
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto errors = onCommunicator(ranks, [&](seqparComm_t comm, int) {
    try {
      runExchangeOps(comm, seed, options);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
  });
  std::printf("%s", errors.empty() ? "all right\n" : errors.c_str());
  return errors.empty() ? 0 : 1;
}
