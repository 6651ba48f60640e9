#include "exchange/shards.h"

#include <algorithm>

namespace seqpar {

StridedRegion Shards::part(int buffer, std::size_t from, std::size_t count, std::size_t of) const {
  return {buffer, from * inner, count * inner, {outer, 1, 1}, {of * inner, 0, 0}};
}

StridedRegion Shards::inWhole(std::size_t member) const {
  return part(0, first(member), tokens[member], total());
}

namespace {

/// Route::gatherers of a gather.
int gatherersOf(const Shards& shards) {
  const auto equal = [&](std::size_t tokens) { return tokens == shards.tokens[0]; };
  if (shards.outer != 1 || !std::all_of(shards.tokens.begin(), shards.tokens.end(), equal)) return 0;
  for (std::size_t i = 0; i < shards.members(); ++i) {
    if (shards.ranks[i] != static_cast<int>(i)) return 0;
  }
  return static_cast<int>(shards.members());
}

}  // namespace

Route gatherRoute(const Shards& shards, std::size_t member) {
  const StridedRegion mine = shards.part(0, 0, shards.tokens[member], shards.tokens[member]);
  Route route;
  route.ctas = shards.ctas;
  route.gatherers = gatherersOf(shards);
  route.sends.reserve(shards.members());
  route.receives.reserve(shards.members());
  const std::size_t total = shards.total();
  for (std::size_t other = 0, first = 0; other < shards.members(); first += shards.tokens[other++]) {
    route.sends.push_back({shards.ranks[other], mine});
    route.receives.push_back({shards.ranks[other], shards.part(0, first, shards.tokens[other], total)});
  }
  return route;
}

Reduction scatterSum(const Shards& shards, std::size_t member) {
  Reduction reduction;
  reduction.ctas = shards.ctas;
  const std::size_t total = shards.total();
  for (std::size_t other = 0, first = 0; other < shards.members(); first += shards.tokens[other++]) {
    reduction.sends.push_back({shards.ranks[other], shards.part(0, first, shards.tokens[other], total)});
  }
  const std::size_t tokens = shards.tokens[member];
  reduction.sums.push_back({shards.part(0, 0, tokens, tokens), false, shards.ranks});
  return reduction;
}

}  // namespace seqpar
