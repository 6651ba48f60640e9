// Ranks and coordinates of grids, against counting.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "seqpar/groups.h"
#include "unit/seed.h"

using Catch::Matchers::Contains;

namespace {

using Coordinates = std::array<int, SEQPAR_DIMS>;

/// All coordinates in the order of their ranks: the inner dimension counts first.
std::vector<Coordinates> countThrough(const seqparGrid_t& grid) {
  std::vector<Coordinates> all{Coordinates{}};
  for (;;) {
    Coordinates next = all.back();
    size_t i = 0;
    for (; i < SEQPAR_DIMS; ++i) {
      const auto dim = static_cast<size_t>(grid.order[i]);
      if (++next[dim] < grid.extent[dim]) break;
      next[dim] = 0;
    }
    if (i == SEQPAR_DIMS) return all;
    all.push_back(next);
  }
}

void checkMaps(const seqparGrid_t& grid) {
  const auto all = countThrough(grid);
  int ranks = 0;
  REQUIRE(seqparGridRanks(&grid, &ranks) == seqparSuccess);
  REQUIRE(ranks == static_cast<int>(all.size()));
  for (int rank = 0; rank < ranks; ++rank) {
    Coordinates found{};
    int back = -1;
    REQUIRE(seqparGridCoordinates(&grid, rank, found.data()) == seqparSuccess);
    REQUIRE(found == all[static_cast<size_t>(rank)]);
    REQUIRE(seqparGridRank(&grid, found.data(), &back) == seqparSuccess);
    REQUIRE(back == rank);
  }
}

void checkGroups(const seqparGrid_t& grid, unsigned dims) {
  const auto all = countThrough(grid);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<int> expected;
    for (size_t other = 0; other < all.size(); ++other) {
      bool same = true;
      for (size_t d = 0; d < SEQPAR_DIMS; ++d) {
        same = same && ((dims & SEQPAR_DIM(d)) != 0 || all[other][d] == all[rank][d]);
      }
      if (same) expected.push_back(static_cast<int>(other));
    }
    std::vector<int> members(all.size(), -1);
    int count = 0;
    int place = -1;
    REQUIRE(seqparGridGroup(&grid, dims, static_cast<int>(rank), members.data(), static_cast<int>(members.size()),
                            &count, &place) == seqparSuccess);
    members.resize(static_cast<size_t>(count));
    REQUIRE(members == expected);
    REQUIRE(members[static_cast<size_t>(place)] == static_cast<int>(rank));
  }
}

}  // namespace

TEST_CASE("Ranks, coordinates and groups of grids in every order") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
  std::array<int, SEQPAR_DIMS> order{};
  std::iota(order.begin(), order.end(), 0);
  do {
    std::copy(order.begin(), order.end(), grid.order);
    for (int& extent : grid.extent) extent = 1 + static_cast<int>(random() % 3);
    checkMaps(grid);
    checkGroups(grid, 1 + static_cast<unsigned>(random() % 31));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("The default order has tensor innermost and pipeline outermost") {
  seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
  std::fill_n(grid.extent, SEQPAR_DIMS, 2);
  const std::array<unsigned, SEQPAR_DIMS> dims{SEQPAR_DIM(seqparDimTensor), SEQPAR_DIM(seqparDimUlysses),
                                               SEQPAR_DIM(seqparDimRing), SEQPAR_DIM(seqparDimData),
                                               SEQPAR_DIM(seqparDimPipeline)};
  for (size_t i = 0; i < dims.size(); ++i) {
    int members[2] = {-1, -1};
    int count = 0;
    int place = -1;
    REQUIRE(seqparGridGroup(&grid, dims[i], 0, members, 2, &count, &place) == seqparSuccess);
    CHECK(members[1] == 1 << i);
  }
  int members[4];
  int count = 0;
  int place = -1;
  REQUIRE(seqparGridGroup(&grid, dims[1] | dims[2], 5, members, 4, &count, &place) == seqparSuccess);
  CHECK(std::vector<int>(members, members + 4) == std::vector<int>{1, 3, 5, 7});
  CHECK(place == 2);
}

TEST_CASE("Invalid grids are refused with an error text") {
  seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
  int number = -7;
  const auto refused = [&](const std::string& words) {
    CHECK(seqparGridRanks(&grid, &number) == seqparInvalidArgument);
    CHECK_THAT(seqparGetLastError(nullptr), Contains(words));
    CHECK(number == -7);
    grid = SEQPAR_GRID_INITIALIZER;
  };
  grid.extent[2] = 0;
  refused("grid->extent[2] (ring) is 0, expected 1 or more");
  grid.order[1] = 0;
  refused("grid->order[1] is 0, expected each of 0 to 4 once");
  grid.order[4] = 5;
  refused("grid->order[4] is 5, expected each of 0 to 4 once");
  std::fill_n(grid.extent, SEQPAR_DIMS, 1 << 10);
  refused("which gives more than 2^31 - 1 ranks");
  grid.magic = 0;
  refused("magic");
}

TEST_CASE("Ranks, coordinates and sets out of range are refused with an error text") {
  seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
  grid.extent[seqparDimRing] = 4;
  Coordinates coordinates{};
  int number = -7;
  int place = -7;
  const auto refused = [](seqparResult_t result, const std::string& words) {
    CHECK(result == seqparInvalidArgument);
    CHECK_THAT(seqparGetLastError(nullptr), Contains(words));
  };
  refused(seqparGridCoordinates(&grid, 4, coordinates.data()), "rank is 4, expected 0 to 3");
  refused(seqparGridCoordinates(&grid, 0, nullptr), "coordinates is NULL");
  coordinates[seqparDimData] = 1;
  refused(seqparGridRank(&grid, coordinates.data(), &number), "coordinates[3] is 1, expected 0 to 0");
  refused(seqparGridGroup(&grid, 0, 0, nullptr, 0, &number, &place),
          "dims is 0, expected a set of dimensions, 1 to 31");
  refused(seqparGridGroup(&grid, 32, 0, nullptr, 0, &number, &place), "dims is 32");
  refused(seqparGridGroup(&grid, 1, -1, nullptr, 0, &number, &place), "rank is -1");
  refused(seqparGridGroup(&grid, 1, 0, nullptr, 1, &number, &place), "members is NULL");
  CHECK(number == -7);
}
