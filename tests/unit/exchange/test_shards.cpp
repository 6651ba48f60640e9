#include <catch2/catch.hpp>

#include "exchange/shards.h"
#include "naive.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

Shards randomShards(std::mt19937_64& random, size_t members) {
  return {1 + random() % 3, randomLengths(random, members, 7), (1 + random() % 3) * sizeof(float),
          shuffled(random, members)};
}

/// Runs body(shards) for every number of members, some times.
template <typename Body>
void forRandomShards(Body&& body) {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < 180; ++i) {
    CAPTURE(i);
    body(random, randomShards(random, 1 + i % 9));
  }
}

}  // namespace

TEST_CASE("a gather returns all shards in the order of the members") {
  forRandomShards([](std::mt19937_64&, const Shards& shards) {
    const size_t members = shards.members();
    const size_t inner = shards.inner / sizeof(float);
    std::vector<Route> routes(members);
    Buffers sends(members), receives(members);
    std::vector<float> whole(shards.outer * shards.total() * inner);
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i + 1);
    for (size_t member = 0; member < members; ++member) {
      std::vector<float> shard;
      for (size_t outer = 0; outer < shards.outer; ++outer) {
        for (size_t token = 0; token < shards.tokens[member]; ++token) {
          const size_t row = outer * shards.total() + shards.first(member) + token;
          for (size_t i = 0; i < inner; ++i) shard.push_back(whole[row * inner + i]);
        }
      }
      const auto rank = static_cast<size_t>(shards.ranks[member]);
      routes[rank] = gatherRoute(shards, member);
      sends[rank] = {toBytes(shard)};
      receives[rank] = {Bytes(whole.size() * sizeof(float))};
    }
    simulate(routes, sends, receives);
    for (size_t rank = 0; rank < members; ++rank) REQUIRE((receives[rank][0] == toBytes(whole)));
  });
}

TEST_CASE("a gather of equal runs from all ranks in order is marked as an all-gather") {
  const Shards equal{1, {3, 3, 3}, 8, {0, 1, 2}};
  for (size_t member = 0; member < 3; ++member) {
    const Route route = gatherRoute(equal, member);
    REQUIRE(route.gatherers == 3);
    for (size_t other = 0; other < 3; ++other) {
      const auto &sent = route.sends[other].region, &received = route.receives[other].region;
      CHECK((sent.offset == 0 && sent.bytes() == 24));
      CHECK((received.offset == 24 * other && received.run == 24));
    }
  }
  Shards other = equal;
  other.tokens = {3, 2, 3};
  CHECK(gatherRoute(other, 0).gatherers == 0);
  other = equal;
  other.outer = 2;
  CHECK(gatherRoute(other, 0).gatherers == 0);
  other = equal;
  other.ranks = {0, 2, 1};
  CHECK(gatherRoute(other, 0).gatherers == 0);
}

TEST_CASE("a scatter returns each shard of the sum, added in the order of the members") {
  forRandomShards([](std::mt19937_64& random, const Shards& shards) {
    const size_t members = shards.members();
    const size_t inner = shards.inner / sizeof(float);
    std::vector<Reduction> reductions(members);
    Buffers sends(members), receives(members);
    std::vector<std::vector<float>> whole(members, std::vector<float>(shards.outer * shards.total() * inner));
    std::normal_distribution<float> normal;
    for (size_t member = 0; member < members; ++member) {
      for (float& value : whole[member]) value = normal(random);
      const auto rank = static_cast<size_t>(shards.ranks[member]);
      reductions[rank] = scatterSum(shards, member);
      sends[rank] = {toBytes(whole[member])};
      receives[rank] = {Bytes(shards.outer * shards.tokens[member] * shards.inner)};
    }
    simulate(reductions, sends, receives);
    for (size_t member = 0; member < members; ++member) {
      std::vector<float> expected;
      for (size_t outer = 0; outer < shards.outer; ++outer) {
        for (size_t i = 0; i < shards.tokens[member] * inner; ++i) {
          const size_t at = (outer * shards.total() + shards.first(member)) * inner + i;
          float sum = whole[0][at];
          for (size_t other = 1; other < members; ++other) sum += whole[other][at];
          expected.push_back(sum);
        }
      }
      REQUIRE((receives[static_cast<size_t>(shards.ranks[member])][0] == toBytes(expected)));
    }
  });
}
