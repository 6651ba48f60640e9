#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "mesh/shape.h"

using namespace seqpar;

TEST_CASE("shapes are all factorizations") {
  for (int n = 1; n <= 64; ++n) {
    std::set<int> widths;
    for (const auto shape : meshShapes(n)) {
      CHECK(shape.ranks() == n);
      widths.insert(shape.a);
    }
    for (int a = 1; a <= n; ++a) CHECK(widths.count(a) == (n % a == 0 ? 1u : 0u));
  }
}

TEST_CASE("groups are the paper's, and every pair of blocks belongs to one rank") {
  for (int n = 1; n <= 64; ++n) {
    for (const auto shape : meshShapes(n)) {
      CAPTURE(n, shape.a);
      std::set<std::pair<int, int>> pairs;
      for (int rank = 0; rank < n; ++rank) {
        const auto q = meshGroup(shape, seqparMeshAxisQ, rank);
        const auto kv = meshGroup(shape, seqparMeshAxisKv, rank);
        REQUIRE(q.size() == shape.a);
        REQUIRE(kv.size() == shape.b);
        REQUIRE(q.ranks[static_cast<size_t>(q.position)] == rank);
        REQUIRE(kv.ranks[static_cast<size_t>(kv.position)] == rank);
        REQUIRE(q.owner(0) == rank);
        REQUIRE(kv.owner(0) == rank);
        REQUIRE(std::is_sorted(q.ranks.begin(), q.ranks.end()));
        REQUIRE(std::is_sorted(kv.ranks.begin(), kv.ranks.end()));
        for (const int member : q.ranks) REQUIRE(member / shape.a == rank / shape.a);
        for (const int member : kv.ranks) REQUIRE(member % shape.a == rank % shape.a);
        for (int u = 0; u < shape.a; ++u) {
          for (int v = 0; v < shape.b; ++v) REQUIRE(pairs.emplace(q.owner(u), kv.owner(v)).second);
        }
      }
      REQUIRE(pairs.size() == static_cast<size_t>(n * n));
    }
  }
}

TEST_CASE("neighbors in a group") {
  const auto q = meshGroup({3, 2}, seqparMeshAxisQ, 5);
  CHECK(q.ranks == std::vector<int>{3, 4, 5});
  CHECK(q.successor() == 3);
  CHECK(q.predecessor() == 4);
  CHECK(q.owner(1) == 4);
  CHECK(q.owner(2) == 3);
  const auto kv = meshGroup({3, 2}, seqparMeshAxisKv, 5);
  CHECK(kv.ranks == std::vector<int>{2, 5});
  CHECK(kv.successor() == 2);
}
