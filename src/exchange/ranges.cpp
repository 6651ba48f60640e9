#include "exchange/ranges.h"

#include <algorithm>
#include <map>

namespace seqpar {
namespace {

/// Consecutive tokens of a member's ranges that one owner has.
struct RangePart {
  std::size_t owner;
  std::size_t from;  ///< in the owner's shard
  std::size_t at;    ///< in the member's array
  std::size_t count;
};

/// In the order of the member's array.
std::vector<RangePart> partsOf(const std::vector<std::size_t>& firsts, const std::vector<Range>& ranges) {
  std::vector<RangePart> parts;
  std::size_t at = 0;
  for (const Range& range : ranges) {
    for (std::size_t done = 0; done < range.count;) {
      const std::size_t token = range.first + done;
      const auto next = std::upper_bound(firsts.begin(), firsts.end(), token);
      const auto owner = static_cast<std::size_t>(next - firsts.begin()) - 1;
      const std::size_t count = std::min(range.count - done, *next - token);
      parts.push_back({owner, token - firsts[owner], at, count});
      at += count;
      done += count;
    }
  }
  return parts;
}

/// The first token of each member, and the number of all tokens.
std::vector<std::size_t> firstsOf(const Shards& shards) {
  std::vector<std::size_t> firsts{0};
  for (const std::size_t tokens : shards.tokens) firsts.push_back(firsts.back() + tokens);
  return firsts;
}

std::vector<std::vector<RangePart>> partsOfAll(const Shards& shards, const RangesOfMembers& ranges) {
  const auto firsts = firstsOf(shards);
  std::vector<std::vector<RangePart>> all;
  all.reserve(ranges.size());
  for (const auto& mine : ranges) all.push_back(partsOf(firsts, mine));
  return all;
}

/// Tokens of a member's array.
struct Copy {
  std::size_t member, at;
};

/// Consecutive tokens of a shard, of which the same members have copies.
struct CopiedTokens {
  std::size_t from, count;
  std::vector<Copy> copies;  ///< in the order of the members
};

/// The copies of all tokens of a shard that are in a range, ascending.
std::vector<CopiedTokens> copiesOf(std::size_t owner, const std::vector<std::vector<RangePart>>& all) {
  struct Event {
    std::size_t token, member, at;
    bool begins;
  };
  std::vector<Event> events;
  for (std::size_t member = 0; member < all.size(); ++member) {
    for (const RangePart& part : all[member]) {
      if (part.owner != owner) continue;
      events.push_back({part.from, member, part.at, true});
      events.push_back({part.from + part.count, member, 0, false});
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.token != b.token ? a.token < b.token : a.begins < b.begins;  // a range may end where the next one begins
  });
  struct Open {
    std::size_t from, at;
  };
  std::map<std::size_t, Open> open;  // by member
  std::vector<CopiedTokens> out;
  for (std::size_t i = 0; i < events.size();) {
    const std::size_t token = events[i].token;
    for (; i < events.size() && events[i].token == token; ++i) {
      if (events[i].begins) {
        open[events[i].member] = {token, events[i].at};
      } else {
        open.erase(events[i].member);
      }
    }
    if (open.empty()) continue;
    CopiedTokens next{token, events[i].token - token, {}};
    for (const auto& [member, start] : open) next.copies.push_back({member, start.at + (token - start.from)});
    out.push_back(std::move(next));
  }
  return out;
}

}  // namespace

std::size_t tokensOf(const std::vector<Range>& ranges) {
  std::size_t tokens = 0;
  for (const Range& range : ranges) tokens += range.count;
  return tokens;
}

Route gatherRangesRoute(const Shards& shards, const RangesOfMembers& ranges, std::size_t member) {
  const auto firsts = firstsOf(shards);
  const std::size_t members = shards.members(), own = tokensOf(ranges[member]);
  const auto mine = partsOf(firsts, ranges[member]);
  Route route;
  route.ctas = shards.ctas;
  for (std::size_t step = 0; step < members; ++step) {
    // Each member starts with itself, so the members do not all send to one member first.
    const std::size_t receiver = (member + step) % members, owner = (member + members - step) % members;
    for (const RangePart& part : partsOf(firsts, ranges[receiver])) {
      if (part.owner != member) continue;
      route.sends.push_back({shards.ranks[receiver], shards.part(0, part.from, part.count, shards.tokens[member])});
    }
    for (const RangePart& part : mine) {
      if (part.owner == owner)
        route.receives.push_back({shards.ranks[owner], shards.part(0, part.at, part.count, own)});
    }
  }
  return route;
}

Reduction scatterRangesSum(const Shards& shards, const RangesOfMembers& ranges, std::size_t member) {
  const auto all = partsOfAll(shards, ranges);
  const std::size_t own = tokensOf(ranges[member]);
  Reduction reduction;
  reduction.ctas = shards.ctas;
  for (std::size_t owner = 0; owner < shards.members(); ++owner) {
    Range sent;  // of this member's array: neighbors are one transfer
    const auto send = [&] {
      if (sent.count > 0) reduction.sends.push_back({shards.ranks[owner], shards.part(0, sent.first, sent.count, own)});
    };
    for (const CopiedTokens& tokens : copiesOf(owner, all)) {
      Sum sum{shards.part(0, tokens.from, tokens.count, shards.tokens[owner]), false, {}};
      for (const Copy& copy : tokens.copies) {
        sum.from.push_back(shards.ranks[copy.member]);
        if (copy.member != member) continue;
        if (shards.outer == 1 && sent.first + sent.count == copy.at) {
          sent.count += tokens.count;
        } else {
          send();
          sent = {copy.at, tokens.count};
        }
      }
      if (owner == member) reduction.sums.push_back(std::move(sum));
    }
    send();
  }
  return reduction;
}

}  // namespace seqpar
