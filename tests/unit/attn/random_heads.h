// Random shapes of heads that share queries and keys, with one decay of all channels, for tests of kernels of groups of
// heads and of states of chunks.
#pragma once

#include <algorithm>
#include <random>

#include "linear_backward_check.h"

namespace seqpar::attn::backward::test {

struct RandomHeads {
  std::vector<int> groups, dks, dvs;
  bool packs = true;  ///< some batches are packed
};

/// Tokens at the borders of chunks, sequences of one token, decays of 0 and 1, groups of many heads.
inline BackwardShape drawHeads(const RandomHeads& allowed, std::mt19937_64& random) {
  const auto coin = [&] { return random() % 2 == 0; };
  const auto one = [&](const auto& from) { return from[random() % std::size(from)]; };
  const int group = one(allowed.groups);
  constexpr Gate kGates[] = {Gate::Token, Gate::Token, Gate::Token, Gate::Head, Gate::None};
  constexpr int64_t kBorders[] = {1, 2, 63, 64, 65, 127, 128, 129, 192};
  constexpr double kDecays[] = {0.05, 0.5, 3, 30, kZeros};
  BackwardShape shape;
  shape.gate = one(kGates);
  shape.tokens = coin() ? one(kBorders) : 1 + static_cast<int64_t>(random() % (group > 8 ? 130 : 400));
  shape.qkHeads = group > 4 ? 1 : 1 + static_cast<int>(random() % 2);
  shape.heads = group * shape.qkHeads;
  shape.dk = one(allowed.dks);
  shape.dv = one(allowed.dvs);
  shape.batch = shape.heads <= 8 && random() % 3 == 0 ? 2 : 1;
  shape.mixed = shape.gate == Gate::Token && random() % 3 == 0;
  shape.decay = one(kDecays);
  shape.states = coin();
  shape.inputGates = coin();
  shape.segmentTokens = kChunk * (1 + static_cast<int64_t>(random() % 5));
  if (allowed.packs && shape.batch == 1 && coin()) {
    int64_t start = static_cast<int64_t>(random() % 3) - 2;  // before the rank's first token, or at it
    for (; start < shape.tokens && shape.starts.size() < 7; start += coin() ? 1 : 1 + random() % 150) {
      shape.starts.push_back(start);
    }
  }
  constexpr int64_t kMostPerSegment = 4;
  if (coin() && shape.tokens <= kMostPerSegment * shape.segmentTokens && shape.starts.empty()) {
    shape.content = Maps::PerSegment;
  }
  return shape;
}

}  // namespace seqpar::attn::backward::test
