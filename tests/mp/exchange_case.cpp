#include "exchange_case.h"

#include <algorithm>

namespace seqpar::test {

const char* nameOf(ExchangeCall call) {
  static constexpr const char* kNames[] = {"seqparSequenceToHeads", "seqparHeadsToSequence",  "seqparAllGather",
                                           "seqparReduceScatter",   "seqparReduceScatterLse", "seqparHaloExchange",
                                           "seqparHaloAdjoint",     "seqparGatherRanges"};
  return kNames[call];
}

float valueOf(std::uint64_t key, size_t index) {
  std::uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u + key * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int>((x >> 40) % 17) - 8);
}

ExchangeCase randomExchangeCase(std::mt19937_64& random, int ranks, int rank, const ExchangeOps& options) {
  const auto below = [&](std::uint64_t n) { return static_cast<int64_t>(random() % n); };
  ExchangeCase c;
  do {
    c.call = static_cast<ExchangeCall>(below(kCalls));
  } while (!options.sums && (c.call == kToSequence || c.call == kScatter || c.call == kScatterLse ||
                             c.call == kHaloAdjoint || c.call == kRanges));
  c.type = static_cast<seqparDataType_t>(below(3));
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  c.ranks = all;
  if (below(2) == 0 && c.call != kRanges) {  // two groups side by side
    std::shuffle(all.begin(), all.end(), random);
    const auto cut = all.begin() + static_cast<std::ptrdiff_t>(below(static_cast<std::uint64_t>(ranks) + 1));
    const bool before = std::find(all.begin(), cut, rank) != cut;
    c.group = before ? std::vector<int>(all.begin(), cut) : std::vector<int>(cut, all.end());
    c.ranks = c.group;
  }
  const bool large = below(8) == 0;
  const auto most = static_cast<std::uint64_t>(large ? options.most : 1 + below(40));
  c.equalTokens = below(3) == 0;
  std::vector<int64_t> lengths;  // for all ranks, so that both groups draw equally many values
  for (int i = 0; i < ranks; ++i) lengths.push_back(below(5) == 0 ? 0 : below(most + 1));
  for (size_t i = 0; i < c.members(); ++i) c.tokens.push_back(lengths[c.equalTokens ? 0 : i]);
  c.outer = 1 + below(3);
  if (large && c.call == kGather && below(2) == 0) {  // one run per rank, which NCCL may gather
    c.group.clear();
    c.ranks.resize(static_cast<size_t>(ranks));
    std::iota(c.ranks.begin(), c.ranks.end(), 0);
    c.tokens.assign(c.ranks.size(), lengths[0]);
    c.equalTokens = true;
    c.outer = 1;
  }
  c.heads = 1 + below(9);
  c.queryHeads = below(2) == 0 ? 0 : c.heads * (1 + below(4));
  c.headDim = large ? 16 : 1 + below(12);
  c.inner = c.call == kScatterLse ? c.heads * c.headDim : 1 + below(large ? 100 : 9);
  c.left = below(3) == 0 ? 0 : below(static_cast<std::uint64_t>(2 * most + 2));
  c.right = below(3) == 0 ? 0 : below(static_cast<std::uint64_t>(2 * most + 2));
  c.periodic = below(2) == 0;
  c.onStream = below(2) == 0;
  c.inPlace = below(2) == 0;
  if (c.inPlace && (c.call == kGather || c.call == kScatter)) c.outer = 1;
  // A token may have more copies than 16-bit types can count.
  if (c.call == kHaloAdjoint && c.periodic && c.left + c.right > c.total()) c.type = seqparFloat32;
  c.key = random() >> 8;
  c.skew = random();
  // Aligned rows: many such rows use separate code paths.
  if (large && below(2) == 0) {
    c.skew = 0;
    if (c.call != kScatterLse) c.inner = 16 * (1 + below(9));
  }
  return c;
}

}  // namespace seqpar::test
