// Layouts that balance a mask.
#include <catch2/catch.hpp>

#include "attn/problem/row_areas.h"
#include "random_slices.h"
#include "seqpar/attn.h"
#include "small_desc.h"
#include "softmax_case.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

/// A solved layout.
struct Solved {
  std::vector<int64_t> bounds;
  std::vector<int> owners;
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;

  Solved(const seqparAttnDesc_t& desc, int ranks)
      : bounds(static_cast<size_t>(2 * ranks)), owners(static_cast<size_t>(2 * ranks)) {
    REQUIRE(seqparAttnSolveLayout(&desc, ranks, nullptr, bounds.data(), owners.data(), &layout.pieces) ==
            seqparSuccess);
    bounds.resize(static_cast<size_t>(layout.pieces) + 1);
    owners.resize(static_cast<size_t>(layout.pieces));
    layout.kind = seqparPieces;
    layout.ranks = ranks;
    layout.tokens = desc.tokens;
    layout.pieceBounds = bounds.data();
    layout.pieceOwners = owners.data();
  }

  std::vector<seqparAttnLoad_t> loads(const seqparAttnDesc_t& desc) const {
    std::vector<seqparAttnLoad_t> all(static_cast<size_t>(layout.ranks));
    REQUIRE(seqparAttnLayoutLoad(&desc, &layout, all.data()) == seqparSuccess);
    return all;
  }
};

SoftmaxSpec drawMask(std::mt19937_64& random, int64_t tokens) {
  SoftmaxSpec s;
  s.tokens = tokens;
  switch (random() % 4) {
    case 0:
      s.mask = static_cast<int>(random() % 2);
      break;
    case 1:
      s.mask = seqparAttnCausal;
      s.bounds = {0, tokens};
      for (int i = 0; i < 5; ++i)
        s.bounds.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1)));
      std::sort(s.bounds.begin(), s.bounds.end());
      break;
    case 2:
      s.windowLeft = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1));
      s.windowRight = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1));
      break;
    default:
      s.slices = drawSlices(random, tokens, tokens, 6);
  }
  return s;
}

TEST_CASE("solved layouts balance tokens and scores with few pieces", "[solve]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  constexpr int kRanks[] = {1, 2, 3, 4, 5, 7, 8, 13, 64, 257};
  for (int round = 0; round < 120; ++round) {
    const int ranks = kRanks[random() % std::size(kRanks)];
    const auto tokens = static_cast<int64_t>(random() % (round % 2 == 0 ? 200 : 20000));
    const auto s = drawMask(random, tokens);
    const auto desc = s.desc();
    CAPTURE(round, ranks, s.text());
    const Solved solved(desc, ranks);
    REQUIRE(solved.layout.pieces <= 2 * ranks - 1);
    REQUIRE((solved.bounds.front() == 0 && solved.bounds.back() == tokens));
    const Solved again(desc, ranks);
    REQUIRE((again.bounds == solved.bounds && again.owners == solved.owners));
    const auto loads = solved.loads(desc);
    int64_t sum = 0, most = 0, largestRow = 0, levels = 0;
    for (const auto& load : loads) {
      REQUIRE((load.tokens == tokens / ranks || load.tokens == tokens / ranks + 1));
      sum += load.scores;
      most = std::max(most, load.scores);
    }
    while ((1 << levels) < ranks) ++levels;
    // Of the whole, in shares of a rank: a level is off by 1/512, by a row, or by a token that does not divide.
    for (int64_t i = 0; i < tokens; i += std::max<int64_t>(1, tokens / 300)) {
      int64_t row = 0;
      for (int64_t j = 0; j < tokens; ++j) row += s.sees(i, j) ? 1 : 0;
      largestRow = std::max(largestRow, row);
    }
    const double mean = static_cast<double>(sum) / ranks;
    const double allowed = mean * (1 + static_cast<double>(levels) / 256) +
                           2.0 * static_cast<double>(levels + 1) * static_cast<double>(largestRow + 64);
    CHECK(static_cast<double>(most) <= allowed);
  }
}

TEST_CASE("the load of a layout is counted by the definition", "[solve]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    const auto tokens = static_cast<int64_t>(random() % 60);
    auto s = drawMask(random, tokens);
    const auto desc = s.desc();
    const Solved solved(desc, ranks);
    auto layout = solved.layout;
    if (random() % 2 == 0) layout.kind = static_cast<int>(random() % 3);
    CAPTURE(round, ranks, layout.kind, s.text());
    std::vector<seqparAttnLoad_t> loads(static_cast<size_t>(ranks));
    REQUIRE(seqparAttnLayoutLoad(&desc, &layout, loads.data()) == seqparSuccess);
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t count = 0, scores = 0, needed = 0;
      REQUIRE(seqparLayoutLocalLength(&layout, rank, &count) == seqparSuccess);
      std::vector<int64_t> own(static_cast<size_t>(count));
      if (count > 0) REQUIRE(seqparLayoutGlobals(&layout, rank, own.data()) == seqparSuccess);
      for (int64_t j = 0; j < tokens; ++j) {
        const auto seen = std::count_if(own.begin(), own.end(), [&](int64_t i) { return s.sees(i, j); });
        scores += seen;
        needed += seen > 0 && std::find(own.begin(), own.end(), j) == own.end() ? 1 : 0;
      }
      const auto& load = loads[static_cast<size_t>(rank)];
      CHECK(load.tokens == count);
      CHECK(load.scores == scores);
      CHECK(load.keysNeeded == needed);
      CHECK((load.bands > 0) == (scores > 0));
    }
  }
}

TEST_CASE("a causal mask gives the zigzag layout", "[solve]") {
  auto desc = smallDesc();
  desc.tokens = 4096;
  desc.mask = seqparAttnCausal;
  const Solved solved(desc, 2);
  CHECK(solved.bounds == std::vector<int64_t>{0, 1024, 3072, 4096});
  CHECK(solved.owners[0] == solved.owners[2]);
  CHECK(solved.owners[0] != solved.owners[1]);
}

TEST_CASE("layouts of a description that is not valid are refused by name", "[solve]") {
  auto desc = smallDesc();
  int64_t bounds[4], pieces = 0;
  int owners[4];
  const auto refused = [&](seqparResult_t result, seqparResult_t expected, const char* text) {
    CHECK(result == expected);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(text));
  };
  const auto solve = [&](int ranks, const seqparAttnSolve_t* params) {
    return seqparAttnSolveLayout(&desc, ranks, params, bounds, owners, &pieces);
  };
  refused(solve(0, nullptr), seqparInvalidArgument, "seqparAttnSolveLayout: ranks is 0, expected 1 to 1048576");
  seqparAttnSolve_t params = SEQPAR_ATTN_SOLVE_INITIALIZER;
  params.granule = 0;
  refused(solve(2, &params), seqparInvalidArgument, "params->granule is 0, expected at least 1");
  params.magic = 3;
  refused(solve(2, &params), seqparInvalidArgument, "params->magic is 3");
  refused(seqparAttnSolveLayout(&desc, 2, nullptr, nullptr, owners, &pieces), seqparInvalidArgument, "bounds is NULL");
  refused(seqparAttnSolveLayout(nullptr, 2, nullptr, bounds, owners, &pieces), seqparInvalidArgument, "desc is NULL");
  desc.family = seqparAttnGla;
  refused(solve(2, nullptr), seqparInvalidUsage, "desc->family is 1, expected 0 (softmax attention)");
  desc = smallDesc();
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.tokens = 7;
  seqparAttnLoad_t load;
  refused(seqparAttnLayoutLoad(&desc, &layout, &load), seqparInvalidArgument,
          "seqparAttnLayoutLoad: layout->tokens is 7, expected 8, the tokens of desc");
}

}  // namespace
