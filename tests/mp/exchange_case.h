// Random cases for the calls of seqpar/exchange.h, and the contents of their buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "exchange_ops_suite.h"

namespace seqpar::test {

enum ExchangeCall { kToHeads, kToSequence, kGather, kScatter, kScatterLse, kHalo, kHaloAdjoint, kRanges, kCalls };

const char* nameOf(ExchangeCall call);

/// Small integers: sums over 16 members are exact in every type.
float valueOf(std::uint64_t key, size_t index);

/// One case, the same on all ranks.
struct ExchangeCase {
  ExchangeCall call = kToHeads;
  seqparDataType_t type = seqparFloat32;
  std::vector<int> group;  ///< that of this rank; empty: all ranks
  std::vector<int> ranks;  ///< of the members
  std::vector<int64_t> tokens;
  bool equalTokens = false;
  int64_t outer = 1, inner = 1;
  int64_t heads = 1, queryHeads = 0, headDim = 1;
  int64_t left = 0, right = 0;
  bool periodic = false, onStream = false, inPlace = false;
  std::uint64_t key = 0;
  size_t skew = 0;

  size_t members() const { return ranks.size(); }
  int64_t total() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }
  int64_t first(size_t member) const {
    return std::accumulate(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(member), int64_t{0});
  }
  std::uint64_t keyOf(size_t member) const { return key * 64 + member; }
};

ExchangeCase randomExchangeCase(std::mt19937_64& random, int ranks, int rank, const ExchangeOps& options);

}  // namespace seqpar::test
