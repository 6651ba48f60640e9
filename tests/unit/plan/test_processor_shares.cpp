// Shares of processors for ranks that are pinned, that share processors, and that do both; on one node and several.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "plan/processor_shares.h"

using namespace seqpar;

namespace {

cpu_set_t setOf(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int p : processors) CPU_SET(p, &set);
  return set;
}

std::vector<int> sharesOf(const std::vector<std::vector<int>>& allowed, const std::vector<int>& nodes) {
  std::vector<cpu_set_t> sets;
  for (const auto& processors : allowed) sets.push_back(setOf(processors));
  return processorShares(sets, nodes);
}

}  // namespace

TEST_CASE("ranks with processors of their own use all of them") {
  CHECK(sharesOf({{0, 1, 2, 3}, {4, 5, 6, 7}}, {0, 0}) == std::vector{4, 4});
  CHECK(sharesOf({{0}, {1, 2, 3}}, {0, 0}) == std::vector{1, 3});
  CHECK(sharesOf({{1000, CPU_SETSIZE - 1}}, {0}) == std::vector{2});
}

TEST_CASE("ranks with equal processors divide them") {
  CHECK(sharesOf({{0, 1, 2, 3}, {0, 1, 2, 3}}, {0, 0}) == std::vector{2, 2});
  CHECK(sharesOf({{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}, {0, 0}) == std::vector{2, 2});
  CHECK(sharesOf({{0}, {0}, {0}}, {0, 0, 0}) == std::vector{1, 1, 1});
}

TEST_CASE("a sum of fractions that is a whole number is not rounded down") {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    std::vector<int> processors;
    for (int p = 0; p < ranks; ++p) processors.push_back(p);
    CAPTURE(ranks);
    CHECK(sharesOf(std::vector(static_cast<size_t>(ranks), processors), std::vector(static_cast<size_t>(ranks), 0)) ==
          std::vector(static_cast<size_t>(ranks), 1));
  }
}

TEST_CASE("ranks with some processors in common divide only those") {
  CHECK(sharesOf({{0, 1, 2, 3}, {2, 3}}, {0, 0}) == std::vector{3, 1});
  CHECK(sharesOf({{0, 1, 2}, {1, 2, 3}}, {0, 0}) == std::vector{2, 2});
  CHECK(sharesOf({{0}, {0, 1, 2}, {2, 3, 4}}, {0, 0, 0}) == std::vector{1, 2, 2});
}

TEST_CASE("equal processors of different nodes are different processors") {
  CHECK(sharesOf({{0, 1}, {0, 1}, {0, 1}}, {0, 1, 0}) == std::vector{1, 2, 1});
}

TEST_CASE("a rank that knows of no processor has one thread") {
  CHECK(sharesOf({{}, {0, 1}}, {0, 0}) == std::vector{1, 2});
}

TEST_CASE("random sets: a rank gets at most its processors, ranks with a whole share at most the node's") {
  std::mt19937 random(29);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<int>> allowed(1 + random() % 6);
    cpu_set_t any = setOf({});
    for (auto& processors : allowed) {
      for (int p = 0; p < 16; ++p) {
        if (random() % 3 != 0) continue;
        processors.push_back(p);
        CPU_SET(p, &any);
      }
    }
    const auto shares = sharesOf(allowed, std::vector(allowed.size(), 0));
    int beyondOne = 0;
    for (size_t rank = 0; rank < allowed.size(); ++rank) {
      CHECK(shares[rank] >= 1);
      CHECK(shares[rank] <= std::max<int>(1, static_cast<int>(allowed[rank].size())));
      if (shares[rank] > 1) beyondOne += shares[rank];
    }
    CHECK(beyondOne <= CPU_COUNT(&any));
  }
}
