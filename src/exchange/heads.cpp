#include "exchange/heads.h"

#include <algorithm>

#include "exchange/shards.h"

namespace seqpar {
namespace {

/// Some heads in the sequence array of `member`.
StridedRegion inSequence(const HeadShards& shards, std::size_t member, HeadRange heads) {
  const std::size_t tokens = shards.tokens[member];
  const std::size_t row = shards.heads * shards.headBytes;
  return {0,
          heads.first * shards.headBytes,
          heads.count * shards.headBytes,
          {shards.batch, tokens, 1},
          {tokens * row, row, 0}};
}

/// Some heads, all owned by `member`, of the tokens that each member holds in the sequence array; in `member`'s head
/// array. Added to `to` in the order of the members.
void addInHeads(const HeadShards& shards, std::size_t member, HeadRange heads, std::vector<Transfer>& to) {
  const HeadRange own = shards.range[member];
  const std::size_t row = own.count * shards.headBytes, all = tokensBefore(shards.tokens, shards.members());
  std::size_t before = 0;
  for (std::size_t source = 0; source < shards.members(); ++source) {
    const StridedRegion region{0,
                               before * row + (heads.first - own.first) * shards.headBytes,
                               heads.count * shards.headBytes,
                               {shards.batch, shards.tokens[source], 1},
                               {all * row, row, 0}};
    to.push_back({shards.ranks[source], region});
    before += shards.tokens[source];
  }
}

/// Consecutive heads with equal owners.
struct OwnedHeads {
  HeadRange heads;
  std::vector<std::size_t> owners;  ///< members, ascending
};

std::vector<OwnedHeads> byOwners(const HeadShards& shards) {
  std::vector<std::size_t> bounds{0, shards.heads};
  for (const HeadRange& range : shards.range) {
    bounds.push_back(range.first);
    bounds.push_back(range.first + range.count);
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::vector<OwnedHeads> all;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    OwnedHeads& part = all.emplace_back();
    part.heads = {bounds[i], bounds[i + 1] - bounds[i]};
    for (std::size_t member = 0; member < shards.members(); ++member) {
      const HeadRange& range = shards.range[member];
      if (range.first <= bounds[i] && bounds[i + 1] <= range.first + range.count) part.owners.push_back(member);
    }
  }
  return all;
}

}  // namespace

HeadRange headsOf(std::size_t heads, std::size_t queryHeads, std::size_t members, std::size_t member) {
  const auto firstQuery = [&](std::size_t m) { return m * (queryHeads / members) + std::min(m, queryHeads % members); };
  const std::size_t begin = firstQuery(member);
  const std::size_t end = firstQuery(member + 1);
  const std::size_t group = queryHeads / std::max<std::size_t>(heads, 1);
  if (begin == end) return {};
  return {begin / group, (end - 1) / group + 1 - begin / group};
}

bool HeadShards::replicated() const {
  std::size_t owned = 0;
  for (const HeadRange& each : range) owned += each.count;
  return owned > heads;
}

Route sequenceToHeads(const HeadShards& shards, std::size_t member) {
  Route route;
  route.sends.reserve(shards.members());
  route.receives.reserve(shards.members());
  for (std::size_t other = 0; other < shards.members(); ++other) {
    route.sends.push_back({shards.ranks[other], inSequence(shards, member, shards.range[other])});
  }
  addInHeads(shards, member, shards.range[member], route.receives);
  return route;
}

Route headsToSequence(const HeadShards& shards, std::size_t member) {
  Route route = sequenceToHeads(shards, member);
  std::swap(route.sends, route.receives);
  return route;
}

Reduction headsToSequenceSum(const HeadShards& shards, std::size_t member) {
  Reduction reduction;
  for (const OwnedHeads& part : byOwners(shards)) {
    Sum& sum = reduction.sums.emplace_back();
    sum.region = inSequence(shards, member, part.heads);
    for (const std::size_t owner : part.owners) {
      sum.from.push_back(shards.ranks[owner]);
      if (owner == member) addInHeads(shards, member, part.heads, reduction.sends);
    }
  }
  return reduction;
}

}  // namespace seqpar
