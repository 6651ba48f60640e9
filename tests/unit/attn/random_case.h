// Random problems of linear attention, softmax attention and the short convolution, for hosts and GPUs. A problem
// depends only on a seed, its number and the number of ranks, so each can be repeated alone.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "placement.h"
#include "rank_threads.h"

namespace seqpar::attn::test {

class RandomCase {
 public:
  virtual ~RandomCase() = default;
  virtual std::string text() const = 0;
  /// Computes the expected results in fp64, in the calling thread.
  virtual void expect() = 0;
  /// Returns "" or the error text of a call. Ranks with a failed call cannot be used again.
  virtual std::string run(const RankThreads& ranks, const Placement* placement) = 0;
  /// After run(): "", or the location of wrong results.
  virtual std::string differences() const = 0;
};

enum class RandomKind { Linear, Softmax, Conv };

/// Where a case runs.
struct RandomPlace {
  int ranks = 1;
  bool onDevice = false;
  seqparComm_t comm = nullptr;  ///< communicator of one rank, which decides whether an algorithm refuses a problem
};

/// Throws std::invalid_argument for a name that is none of "linear", "softmax" and "conv".
RandomKind randomKind(const std::string& name);
std::unique_ptr<RandomCase> drawCase(RandomKind kind, uint64_t seed, uint64_t index, const RandomPlace& place);

std::unique_ptr<RandomCase> drawLinear(std::mt19937_64& random, const RandomPlace& place);
std::unique_ptr<RandomCase> drawSoftmax(std::mt19937_64& random, const RandomPlace& place);
std::unique_ptr<RandomCase> drawConv(std::mt19937_64& random, const RandomPlace& place);

/// Tokens of each rank: none, few or up to `most`; sometimes none on any rank.
std::vector<int64_t> drawShards(std::mt19937_64& random, int ranks, int64_t most);
/// Borders of packed sequences, some empty, some at the shards' ends.
std::vector<int64_t> drawBorders(std::mt19937_64& random, const std::vector<int64_t>& shards);

}  // namespace seqpar::attn::test
