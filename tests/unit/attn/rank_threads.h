// Communicators of ranks that are threads of this process.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "common/timeouts.h"
#include "seqpar/attn.h"
#include "seqpar/seqpar.h"

namespace seqpar::attn::test {

/// Destroying a communicator waits for the other ranks, so each rank needs its own thread.
class RankThreads {
 public:
  explicit RankThreads(int count) : comms_(static_cast<size_t>(count)) {
    REQUIRE(seqparCommInitAll(comms_.data(), count, nullptr) == seqparSuccess);
  }
  /// With a configuration for each rank.
  RankThreads(int count, const std::function<seqparConfig_t(int rank)>& configOf) : comms_(static_cast<size_t>(count)) {
    seqparUniqueId id;
    REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
    const auto said = each([&](int rank) {
      const auto config = configOf(rank);
      const auto result = seqparCommInitRankConfig(&comms_[static_cast<size_t>(rank)], count, id, rank, &config);
      return result == seqparSuccess ? std::string() : std::string(seqparGetErrorString(result));
    });
    for (const auto& text : said) REQUIRE(text == "");
  }
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  ~RankThreads() {
    each([&](int rank) {
      return std::string(seqparGetErrorString(seqparCommDestroy(comms_[static_cast<size_t>(rank)])));
    });
  }

  seqparComm_t operator[](int rank) const { return comms_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(comms_.size()); }

  /// Runs body(rank) on all ranks concurrently; returns the results after all have finished.
  std::vector<std::string> each(const std::function<std::string(int)>& body) const {
    std::vector<std::future<std::string>> running;
    for (int rank = 0; rank < size(); ++rank) running.push_back(std::async(std::launch::async, body, rank));
    std::vector<std::string> said;
    for (auto& result : running) said.push_back(result.get());
    return said;
  }

 private:
  std::vector<seqparComm_t> comms_;
};

/// Ranks that wait for each other without a timeout.
inline RankThreads makeRanks(int count, bool checkArguments) {
  return {count, [=](int) {
            seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
            config.timeoutMs = seqpar::test::kNoTimeoutMs;
            config.checkArguments = checkArguments ? 1 : 0;
            return config;
          }};
}

}  // namespace seqpar::attn::test
