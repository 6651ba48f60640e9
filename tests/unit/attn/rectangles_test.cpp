// Rectangles of scores against their definition: which query sees which key.
#include "attn/block/rectangles.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "softmax_case.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

/// Some of `tokens` positions as runs of various strides, in any order, each position at most once.
std::vector<TokenRun> drawRuns(std::mt19937_64& random, int64_t tokens) {
  std::vector<bool> taken(static_cast<size_t>(tokens), false);
  std::vector<TokenRun> runs;
  int64_t local = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    TokenRun run{local, draw(random, 0, tokens - 1), draw(random, 0, tokens), draw(random, 1, 4)};
    if (attempt % 2 == 0) run.stride = 3;  // runs with equal strides, where bands have slope 1
    int64_t length = 0;
    for (int64_t p = run.position; length < run.length && p < tokens && !taken[static_cast<size_t>(p)];
         p += run.stride) {
      taken[static_cast<size_t>(p)] = true;
      ++length;
    }
    run.length = length;
    local += length;
    runs.push_back(run);
  }
  return runs;
}

std::vector<int64_t> positions(const std::vector<TokenRun>& runs) {
  std::vector<int64_t> all;
  for (const auto& run : runs) {
    for (int64_t i = 0; i < run.length; ++i) all.push_back(run.position + i * run.stride);
  }
  return all;
}

TEST_CASE("rectangles cover each visible score once and no other") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 400; ++round) {
    test::SoftmaxSpec s;
    s.tokens = draw(random, 1, 40);
    s.mask = static_cast<int>(random() % 2);
    if (random() % 2 == 0) s.windowLeft = draw(random, 0, s.tokens);
    if (random() % 2 == 0) s.windowRight = draw(random, 0, s.tokens);
    if (random() % 3 == 0) {
      s.bounds = {0, draw(random, 0, s.tokens), draw(random, 0, s.tokens), s.tokens};
      std::sort(s.bounds.begin(), s.bounds.end());
    } else if (random() % 2 == 0) {
      s.kvTokens = draw(random, 1, 50);
    }
    Visibility v;
    if (s.windowLeft >= 0) v.left = s.windowLeft;
    if (s.mask == seqparAttnCausal) v.right = 0;
    if (s.mask == seqparAttnFull && s.windowRight >= 0) v.right = s.windowRight;
    if (s.kvTokens > 0) v.shift = s.kvTokens - s.tokens;
    v.cuSeqlens = s.bounds;
    const auto queries = drawRuns(random, s.tokens), keys = drawRuns(random, s.keys());
    const auto rows = positions(queries), columns = positions(keys);
    std::vector<std::vector<int>> seen(rows.size(), std::vector<int>(columns.size(), 0));
    const auto rectangles = rectanglesOf(queries, keys, v);
    int64_t scores = 0;
    CAPTURE(round, s.text());
    for (const auto& r : rectangles) {
      scores += r.scores();
      for (int64_t i = 0; i < r.rows; ++i) {
        int64_t ofRow = 0;
        for (int64_t j = 0; j < r.columns; ++j) {
          const bool inside = (r.lower == INT64_MIN || i + r.lower <= j) && (r.upper == INT64_MAX || j <= i + r.upper);
          ofRow += inside ? 1 : 0;
          seen.at(static_cast<size_t>(r.row + i)).at(static_cast<size_t>(r.column + j)) += inside ? 1 : 0;
        }
        REQUIRE(ofRow > 0);
      }
    }
    int64_t expected = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t j = 0; j < columns.size(); ++j) {
        const int sees = s.sees(rows[i], columns[j]) ? 1 : 0;
        expected += sees;
        if (seen[i][j] != sees) FAIL("query " << rows[i] << ", key " << columns[j] << ": " << seen[i][j]);
      }
    }
    REQUIRE(scores == expected);
  }
}

TEST_CASE("rows of rectangles, split and shifted, keep their visible columns") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  const auto seenBy = [](const std::vector<Rectangle>& rectangles) {
    std::map<std::pair<int64_t, int64_t>, int> seen;
    for (const auto& r : rectangles) {
      for (int64_t i = 0; i < r.rows; ++i) {
        for (int64_t j = 0; j < r.columns; ++j) {
          if ((r.lower == INT64_MIN || i + r.lower <= j) && (r.upper == INT64_MAX || j <= i + r.upper)) {
            ++seen[{r.row + i, r.column + j}];
          }
        }
      }
    }
    return seen;
  };
  for (int round = 0; round < 300; ++round) {
    Visibility v;
    const int64_t tokens = draw(random, 1, 40);
    if (random() % 2 == 0) v.left = draw(random, 0, tokens);
    if (random() % 2 == 0) v.right = draw(random, 0, tokens);
    const auto queries = drawRuns(random, tokens), keys = drawRuns(random, tokens);
    const auto all = rectanglesOf(queries, keys, v);
    const auto rows = static_cast<int64_t>(positions(queries).size());
    const int64_t cut = draw(random, 0, rows), row = draw(random, 0, 9), column = draw(random, 0, 9);
    auto parts = movedBy(ofRows(all, 0, cut), -row, -column);
    for (const auto& r : parts) CHECK(r.row + r.rows <= cut + row);
    for (const auto& r : movedBy(ofRows(all, cut, rows - cut), -row, -column)) {
      CHECK(r.row >= cut + row);
      parts.push_back(r);
    }
    CAPTURE(round, cut);
    CHECK(seenBy(movedBy(parts, row, column)) == seenBy(all));
    CHECK(scoresOf(parts) == scoresOf(all));
    const int64_t leastRows = draw(random, 1, std::max<int64_t>(rows, 1));  // there may be no rows
    const auto split = splitDiagonals(all, leastRows);
    CHECK(seenBy(split) == seenBy(all));
    CHECK(scoresOf(split) == scoresOf(all));
    for (const auto& r : split) CHECK((r.rows < leastRows || r.lower != INT64_MIN || r.full() || r.upper <= 0));
  }
}

TEST_CASE("the usual layouts become few rectangles") {
  const Visibility full{}, causal{kUnbounded, 0, 0, {}};
  const std::vector<TokenRun> first{{0, 0, 8, 1}, {8, 24, 8, 1}},
      second{{0, 8, 8, 1}, {8, 16, 8, 1}};  // zigzag, 2 ranks
  CHECK(rectanglesOf(first, second, full).size() == 1);
  // Keys of a later rank: the second half sees all. Keys of an earlier rank: all queries see the first half.
  CHECK(rectanglesOf(first, second, causal).size() == 1);
  CHECK(rectanglesOf(second, first, causal).size() == 1);
  // A rank's two runs together see one triangle, as do adjacent contiguous shards.
  const Rectangle triangle{0, 16, 0, 16, INT64_MIN, 0};
  CHECK(rectanglesOf(first, first, causal) == std::vector{triangle});
  CHECK(rectanglesOf(second, second, causal) == std::vector{triangle});
  const auto all = joinRuns(std::vector<std::vector<TokenRun>>{{{0, 0, 8, 1}}, {{0, 8, 8, 1}}});
  CHECK(all.size() == 1);
  CHECK(rectanglesOf(all, all, causal) == std::vector{triangle});
  // The lower rows of a triangle see all columns to their left and a smaller triangle.
  CHECK(ofRows(std::array{triangle}, 8, 8) == std::vector{Rectangle{8, 8, 0, 16, INT64_MIN, 8}});
  const auto zigzag = joinRuns(std::vector{first, second});
  CHECK(zigzag.size() == 3);
  CHECK(rectanglesOf(zigzag, zigzag, causal).size() == 4);
  const std::vector<TokenRun> even{{0, 0, 8, 2}}, odd{{0, 1, 8, 2}};  // striped
  const auto exclusive = rectanglesOf(even, odd, causal);
  REQUIRE(exclusive.size() == 1);
  CHECK(exclusive[0].row == 1);
  CHECK(exclusive[0].rows == 7);
  CHECK(exclusive[0].columns == 7);
  CHECK(exclusive[0].upper == 0);
}

TEST_CASE("rows between rectangles, and columns that are in one only") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<Rectangle> all;
    constexpr int64_t kRows = 40;
    for (int64_t i = draw(random, 0, 6); i > 0; --i) {
      Rectangle r{draw(random, 0, kRows - 1), 0, draw(random, 0, kRows - 1), 0};
      r.rows = draw(random, 1, std::min<int64_t>(9, kRows - r.row));
      r.columns = draw(random, 1, std::min<int64_t>(9, kRows - r.column));
      all.push_back(r);
    }
    const int64_t least = draw(random, 0, kRows), most = draw(random, least, kRows),
                  preferred = draw(random, least, most);
    const auto cuts = [&](int64_t row) {
      return std::any_of(all.begin(), all.end(),
                         [&](const Rectangle& r) { return r.row < row && row < r.row + r.rows; });
    };
    int64_t nearest = -1;
    for (int64_t row = least; row <= most; ++row) {
      if (!cuts(row) && (nearest < 0 || std::abs(row - preferred) < std::abs(nearest - preferred))) nearest = row;
    }
    const int64_t row = rowBetween(all, least, preferred, most);
    CAPTURE(round, least, preferred, most, row, nearest);
    CHECK((nearest < 0 ? row == preferred : !cuts(row) && std::abs(row - preferred) == std::abs(nearest - preferred)));
    std::vector<int> of(2 * kRows, 0);
    for (const auto& r : all) {
      for (int64_t j = 0; j < r.columns; ++j) ++of[static_cast<size_t>(r.column + j)];
    }
    CHECK(columnsDisjoint(all) == std::none_of(of.begin(), of.end(), [](int count) { return count > 1; }));
  }
}

}  // namespace
