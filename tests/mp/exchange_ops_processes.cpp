// exchange_ops_processes [CASES], under mpirun: the calls of seqpar/exchange.h with ranks as processes.
#include <cstdlib>

#include "common/run_processes.h"
#include "mp/exchange_ops_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  ExchangeOps options;
  if (argc > 1) options.cases = std::atoi(argv[1]);
  return runAsProcesses([&](seqparComm_t comm, std::uint64_t seed) { runExchangeOps(comm, seed, options); });
}
