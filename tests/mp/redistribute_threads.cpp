// redistribute_threads RANKS: the suite with ranks as threads of this process.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "common/ranks.h"
#include "redistribute_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  seqparUniqueId id;
  if (seqparGetUniqueId(&id) != seqparSuccess) {
    std::printf("%s\n", seqparGetLastError(nullptr));
    return 1;
  }
  const auto errors = onThreads(ranks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = 60000;
    config.checkArguments = seed % 2 == 0 ? 1 : 0;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    try {
      runRedistributeSuite(comm, seed, 60);
      runGroupsSuite(comm, seed);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  std::printf("%s", errors.empty() ? "all right\n" : errors.c_str());
  return errors.empty() ? 0 : 1;
}
