// ring_threads RANKS [RANKS_A_NODE]: the suite with ranks as threads of this process.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "common/ranks.h"
#include "ring_suite.h"

using namespace seqpar::test;

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int ranksOfNode = argc > 2 ? std::atoi(argv[2]) : ranks;
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  seqparUniqueId id;
  if (seqparGetUniqueId(&id) != seqparSuccess) {
    std::printf("%s\n", seqparGetLastError(nullptr));
    return 1;
  }
  const auto errors = onThreads(ranks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    const auto node = "node" + std::to_string(rank / ranksOfNode);
    config.hostId = node.c_str();
    config.timeoutMs = 60000;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    try {
      runRingSuite(comm, seed, 10);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  std::printf("%s", errors.empty() ? "all right\n" : errors.c_str());
  return errors.empty() ? 0 : 1;
}
