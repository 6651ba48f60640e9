#include <catch2/catch.hpp>
#include <numeric>

#include "exchange/heads.h"
#include "naive.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

HeadShards makeShards(std::mt19937_64& random, size_t members, size_t heads, size_t queryHeads) {
  HeadShards shards;
  shards.batch = 1 + random() % 2;
  shards.tokens = randomLengths(random, members, 5);
  shards.heads = heads;
  for (size_t member = 0; member < members; ++member) {
    shards.range.push_back(headsOf(heads, queryHeads, members, member));
  }
  shards.headBytes = (1 + random() % 3) * sizeof(float);
  shards.ranks = shuffled(random, members);
  return shards;
}

/// A value that identifies an element's position in the whole array.
float valueAt(const HeadShards& shards, size_t batch, size_t token, size_t head, size_t i) {
  const size_t tokens = std::accumulate(shards.tokens.begin(), shards.tokens.end(), size_t{0});
  const size_t perHead = shards.headBytes / sizeof(float);
  return static_cast<float>(((batch * tokens + token) * shards.heads + head) * perHead + i + 1);
}

/// Tokens [first, first + count) and some heads of the whole array, in order.
std::vector<float> valuesOf(const HeadShards& shards, size_t first, size_t count, HeadRange heads) {
  std::vector<float> values;
  for (size_t batch = 0; batch < shards.batch; ++batch) {
    for (size_t token = first; token < first + count; ++token) {
      for (size_t head = heads.first; head < heads.first + heads.count; ++head) {
        for (size_t i = 0; i < shards.headBytes / sizeof(float); ++i) {
          values.push_back(valueAt(shards, batch, token, head, i));
        }
      }
    }
  }
  return values;
}

/// Runs body(shards) for every number of members with head counts that divide, do not divide, and are too few.
template <typename Body>
void forAllHeads(Body&& body) {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (size_t members = 1; members <= 9; ++members) {
    for (const size_t heads : {1, 2, 3, 4, 5, 8, 12}) {
      for (const size_t group : {1, 2, 3, 8}) {
        CAPTURE(members, heads, group);
        body(random, makeShards(random, members, heads, heads * group));
      }
    }
  }
}

struct Arrays {
  std::vector<float> sequence, heads;
};

Arrays arraysOf(const HeadShards& shards, size_t member) {
  const auto begin = shards.tokens.begin();
  const size_t first = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(member), size_t{0});
  const size_t all = std::accumulate(begin, shards.tokens.end(), size_t{0});
  return {valuesOf(shards, first, shards.tokens[member], {0, shards.heads}),
          valuesOf(shards, 0, all, shards.range[member])};
}

}  // namespace

TEST_CASE("heads are distributed evenly, to the ranks of their queries") {
  for (size_t members = 1; members <= 9; ++members) {
    for (size_t heads = 1; heads <= 13; ++heads) {
      for (size_t group = 1; group <= 5; ++group) {
        const size_t queryHeads = heads * group;
        CAPTURE(members, heads, queryHeads);
        size_t query = 0;
        for (size_t member = 0; member < members; ++member) {
          const HeadRange queries = headsOf(queryHeads, queryHeads, members, member);
          const HeadRange own = headsOf(heads, queryHeads, members, member);
          if (queries.count > 0) REQUIRE(queries.first == query);
          REQUIRE(queries.count == queryHeads / members + (member < queryHeads % members ? 1 : 0));
          for (size_t head = 0; head < heads; ++head) {
            bool used = false;
            for (size_t q = query; q < query + queries.count; ++q) used = used || q / group == head;
            REQUIRE((head >= own.first && head < own.first + own.count) == used);
          }
          query += queries.count;
        }
        REQUIRE(query == queryHeads);
      }
    }
  }
}

TEST_CASE("sequence to heads: every member gets all tokens of its heads") {
  forAllHeads([](std::mt19937_64&, const HeadShards& shards) {
    const size_t members = shards.members();
    std::vector<Route> routes(members);
    Buffers sends(members), receives(members);
    for (size_t member = 0; member < members; ++member) {
      const auto rank = static_cast<size_t>(shards.ranks[member]);
      const Arrays arrays = arraysOf(shards, member);
      routes[rank] = sequenceToHeads(shards, member);
      sends[rank] = {toBytes(arrays.sequence)};
      receives[rank] = {Bytes(arrays.heads.size() * sizeof(float))};
    }
    simulate(routes, sends, receives);
    for (size_t member = 0; member < members; ++member) {
      const auto rank = static_cast<size_t>(shards.ranks[member]);
      REQUIRE((fromBytes<float>(receives[rank][0]) == arraysOf(shards, member).heads));
    }
  });
}

TEST_CASE("heads to sequence returns heads to their ranks or sums over the owners") {
  forAllHeads([](std::mt19937_64&, const HeadShards& shards) {
    const size_t members = shards.members();
    std::vector<size_t> owners(shards.heads);
    for (const HeadRange& range : shards.range) {
      for (size_t head = range.first; head < range.first + range.count; ++head) ++owners[head];
    }
    REQUIRE(shards.replicated() == (std::accumulate(owners.begin(), owners.end(), size_t{0}) > shards.heads));
    std::vector<Route> routes(members);
    std::vector<Reduction> reductions(members);
    Buffers sends(members), receives(members);
    for (size_t member = 0; member < members; ++member) {
      const auto rank = static_cast<size_t>(shards.ranks[member]);
      const Arrays arrays = arraysOf(shards, member);
      if (!shards.replicated()) routes[rank] = headsToSequence(shards, member);
      reductions[rank] = headsToSequenceSum(shards, member);
      sends[rank] = {toBytes(arrays.heads)};
      receives[rank] = {Bytes(arrays.sequence.size() * sizeof(float))};
    }
    Buffers sums = receives;
    simulate(reductions, sends, sums);
    if (!shards.replicated()) {
      simulate(routes, sends, receives);
      REQUIRE((receives == sums));
    }
    for (size_t member = 0; member < members; ++member) {
      auto expected = arraysOf(shards, member).sequence;
      const size_t row = shards.headBytes / sizeof(float);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] *= static_cast<float>(owners[i / row % shards.heads]);
      REQUIRE((fromBytes<float>(sums[static_cast<size_t>(shards.ranks[member])][0]) == expected));
    }
  });
}
