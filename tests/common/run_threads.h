// The main function of a suite with ranks as threads of one process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>

#include "common/draw_seed.h"
#include "common/ranks.h"
#include "common/timeouts.h"

namespace seqpar::test {

/// A suite; `seed` is the same on all ranks.
using Suite = std::function<void(seqparComm_t comm, std::uint64_t seed)>;

/// Runs `suite` on `ranks` threads with `ranksOfNode` consecutive ranks per node. Returns the exit status.
inline int runAsThreads(int ranks, int ranksOfNode, const Suite& suite) {
  const auto seed = seqpar::test::drawSeed();
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
    config.timeoutMs = kNoTimeoutMs;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    try {
      suite(comm, seed);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  std::printf("%s", errors.empty() ? "all right\n" : errors.c_str());
  return errors.empty() ? 0 : 1;
}

}  // namespace seqpar::test
