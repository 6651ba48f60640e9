#include "exchange/halo.h"

#include <algorithm>

namespace seqpar {
namespace {

/// Consecutive tokens of a member's halo that one owner holds.
struct HaloPart {
  HaloSide side;
  std::size_t at;  ///< in the halo
  std::size_t owner;
  std::size_t from;  ///< in the owner's shard
  std::size_t count;
};

/// The next part of [0, total) from `position` on, of at most `most` tokens.
struct Stretch {
  bool inside;
  std::size_t from;  ///< if inside
  std::size_t count;
};

Stretch nextStretch(std::ptrdiff_t position, std::size_t most, std::ptrdiff_t total, bool periodic) {
  if (total == 0) return {false, 0, most};
  if (periodic) {
    const std::ptrdiff_t from = (position % total + total) % total;
    return {true, static_cast<std::size_t>(from), std::min(most, static_cast<std::size_t>(total - from))};
  }
  if (position < 0) return {false, 0, std::min(most, static_cast<std::size_t>(-position))};
  if (position >= total) return {false, 0, most};
  return {true, static_cast<std::size_t>(position), std::min(most, static_cast<std::size_t>(total - position))};
}

struct HaloParts {
  std::vector<HaloPart> parts;    ///< left before right, ascending
  std::vector<HaloPart> outside;  ///< past the ends of the sequence; no owner
};

HaloParts partsOf(const Shards& shards, const Halo& halo, std::size_t member) {
  HaloParts out;
  const auto total = static_cast<std::ptrdiff_t>(shards.total());
  const auto begin = static_cast<std::ptrdiff_t>(shards.first(member));
  const auto side = [&](HaloSide which, std::ptrdiff_t position, std::size_t tokens) {
    for (std::size_t at = 0; at < tokens;) {
      const Stretch stretch =
          nextStretch(position + static_cast<std::ptrdiff_t>(at), tokens - at, total, halo.periodic);
      HaloPart part{which, at, 0, stretch.from, stretch.count};
      if (stretch.inside) {
        while (part.from >= shards.tokens[part.owner]) part.from -= shards.tokens[part.owner++];
        part.count = std::min(part.count, shards.tokens[part.owner] - part.from);
      }
      (stretch.inside ? out.parts : out.outside).push_back(part);
      at += part.count;
    }
  };
  side(kLeft, begin - static_cast<std::ptrdiff_t>(halo.left), halo.left);
  side(kRight, begin + static_cast<std::ptrdiff_t>(shards.tokens[member]), halo.right);
  return out;
}

StridedRegion inHalo(const Shards& shards, const Halo& halo, const HaloPart& part) {
  return shards.part(part.side, part.at, part.count, part.side == kLeft ? halo.left : halo.right);
}

StridedRegion inShard(const Shards& shards, std::size_t owner, std::size_t from, std::size_t count) {
  return shards.part(0, from, count, shards.tokens[owner]);
}

/// Consecutive tokens of a shard, and the halos that contain a copy of exactly these tokens, at most one per member.
struct Copies {
  struct Copy {
    std::size_t member;
    HaloPart part;
  };
  std::size_t from, count;
  std::vector<Copy> copies;  ///< in the order of the members
};

/// The copies of a shard. If a member holds several copies of a token, they are in several entries for that token, one
/// after the other.
std::vector<Copies> copiesOf(const Shards& shards, std::size_t owner, const std::vector<HaloParts>& all) {
  std::vector<Copies::Copy> copies;
  std::vector<std::size_t> bounds;
  for (std::size_t member = 0; member < shards.members(); ++member) {
    for (const HaloPart& part : all[member].parts) {
      if (part.owner != owner) continue;
      copies.push_back({member, part});
      bounds.push_back(part.from);
      bounds.push_back(part.from + part.count);
    }
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());

  std::vector<Copies> out;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const std::size_t from = bounds[i];
    const std::size_t count = bounds[i + 1] - from;
    std::vector<Copies> layers;  // the n-th copy that each member has
    std::vector<std::size_t> had(shards.members());
    for (const auto& [member, part] : copies) {
      if (part.from > from || part.from + part.count < from + count) continue;
      const std::size_t layer = had[member]++;
      if (layer == layers.size()) layers.push_back({from, count, {}});
      layers[layer].copies.push_back({member, {part.side, part.at + (from - part.from), owner, from, count}});
    }
    out.insert(out.end(), layers.begin(), layers.end());
  }
  return out;
}

}  // namespace

HaloRoute haloRoute(const Shards& shards, const Halo& halo, std::size_t member) {
  HaloRoute out;
  for (std::size_t other = 0; other < shards.members(); ++other) {
    const HaloParts parts = partsOf(shards, halo, other);
    for (const HaloPart& part : parts.parts) {
      if (part.owner == member) {
        out.route.sends.push_back({shards.ranks[other], inShard(shards, member, part.from, part.count)});
      }
      if (other == member) {
        out.route.receives.push_back({shards.ranks[part.owner], inHalo(shards, halo, part)});
      }
    }
    if (other != member) continue;
    for (const HaloPart& part : parts.outside) out.zeros.push_back(inHalo(shards, halo, part));
  }
  return out;
}

Reduction haloAdjoint(const Shards& shards, const Halo& halo, std::size_t member) {
  std::vector<HaloParts> all;
  for (std::size_t each = 0; each < shards.members(); ++each) all.push_back(partsOf(shards, halo, each));
  Reduction reduction;
  for (std::size_t owner = 0; owner < shards.members(); ++owner) {
    for (const Copies& copies : copiesOf(shards, owner, all)) {
      Sum sum{inShard(shards, owner, copies.from, copies.count), true, {}};
      for (const auto& copy : copies.copies) {
        sum.from.push_back(shards.ranks[copy.member]);
        if (copy.member == member) reduction.sends.push_back({shards.ranks[owner], inHalo(shards, halo, copy.part)});
      }
      if (owner == member) reduction.sums.push_back(std::move(sum));
    }
  }
  return reduction;
}

}  // namespace seqpar
