// Pages of keys as few calls of a kernel: columns in another order and rectangles by rows, with the same scores.
#include "attn/block/cuda_arrange.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "prefill_case.h"
#include "random_slices.h"

namespace {

using namespace seqpar::attn;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

using Cells = std::multiset<std::pair<int64_t, int64_t>>;

Cells cellsOf(const std::vector<Rectangle>& rectangles, const std::vector<ColumnRun>& order) {
  std::vector<int64_t> columns;
  for (const auto& run : order) {
    for (int64_t i = 0; i < run.count; ++i) columns.push_back(run.from + i);
  }
  Cells cells;
  for (const auto& r : rectangles) {
    for (int64_t i = 0; i < r.rows; ++i) {
      const int64_t first = r.lower == INT64_MIN ? 0 : std::max<int64_t>(0, i + r.lower);
      const int64_t last = r.upper == INT64_MAX ? r.columns - 1 : std::min(r.columns - 1, i + r.upper);
      for (int64_t j = first; j <= last; ++j) {
        const int64_t column = r.column + j;
        cells.emplace(r.row + i, order.empty() ? column : columns.at(static_cast<size_t>(column)));
      }
    }
  }
  return cells;
}

/// The rectangles of queries [0, queries) and the columns that a random rank of `ranks` keeps.
std::vector<Rectangle> rectanglesOfARank(const Prefill& c, std::mt19937_64& random, int ranks) {
  std::vector<Rectangle> slices;
  for (const auto& s : c.slices()) {
    Rectangle r{s.row, s.rows, s.column, s.columns, s.lower, s.upper};
    if (trim(r)) slices.push_back(r);
  }
  std::vector<TokenRun> keys;
  int64_t local = 0;
  for (size_t page = 0; page < c.pages.size(); ++page) {
    if (random() % static_cast<uint64_t>(ranks) != 0) continue;
    const int64_t length = c.bounds[page + 1] - c.bounds[page];
    keys.push_back({local, c.bounds[page], length, 1});
    local += length;
  }
  const TokenRun queries{0, 0, c.queries(), 1};
  Visibility visibility;
  visibility.slices = std::make_shared<const SliceMask>(std::move(slices));
  return rectanglesOf({&queries, 1}, keys, visibility);
}

TEST_CASE("arranged rectangles contain every score once", "[steps]") {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  int arranged = 0, ordered = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(seed, round);
    const auto c = drawPrefill(random, 4, 150);
    const auto seen = rectanglesOfARank(c, random, 1 + round % 3);
    const auto expected = cellsOf(seen, {});
    const auto sorted = byFirstRow(seen);
    CHECK((cellsOf(sorted.rectangles, sorted.order) == expected));
    BlockLimits limits;
    limits.cudnn = random() % 8 != 0;
    limits.sharedColumns = limits.join = limits.changing = true;
    limits.leastScores = 16;
    const auto made = arrangeForward(seen, limits, {4, 2, 64, 64});
    CHECK((cellsOf(made.rectangles, made.order) == expected));
    size_t calls = 0;
    for (const auto& step : stepsOf(made.rectangles, limits)) calls += step.rectangles.empty() ? 0 : 1;
    CHECK((seen.empty() || calls > 0));
    arranged += stepsOf(seen, limits).size() > calls ? 1 : 0;
    ordered += made.order.empty() ? 0 : 1;
  }
  CHECK(arranged > 20);
  CHECK(ordered > 20);
}

TEST_CASE("full rectangles halved by rows contain every score once", "[steps]") {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(seed, round);
    std::vector<seqparAttnSlice_t> slices;
    drawSlices(random, 0, 60, 0, 60, 1 + round % 6, slices);
    std::vector<Rectangle> full;
    for (const auto& s : slices) {
      if (s.rows > 0 && s.columns > 0) full.push_back({s.row, s.rows, s.column, s.columns});
    }
    // Two bands of one box are one full rectangle here.
    full.erase(std::unique(full.begin(), full.end()), full.end());
    const auto leaf = static_cast<int64_t>(1 + random() % 30);
    CHECK((cellsOf(halvedByRows(full, leaf), {}) == cellsOf(full, {})));
  }
}

TEST_CASE("pages of 16 tokens in any order take few calls", "[steps]") {
  std::mt19937_64 random(5);
  for (const bool shuffled : {false, true}) {
    Prefill c;
    for (const int64_t length : {800, 1600, 2400, 3200}) {
      c.lengths.push_back(length);
      c.cuQueries.push_back(c.cuQueries.back() + 512);
      for (int64_t at = 0; at < length; at += 16) c.pages.push_back({0, std::ssize(c.lengths) - 1, at, 16});
    }
    if (shuffled) std::shuffle(c.pages.begin(), c.pages.end(), random);
    for (auto& page : c.pages) {
      page.column = c.bounds.back();
      c.bounds.push_back(page.column + 16);
    }
    const auto seen = rectanglesOfARank(c, random, 2);
    BlockLimits limits;
    limits.cudnn = limits.sharedColumns = limits.join = limits.changing = true;
    CHECK(stepsOf(seen, limits).size() >= (shuffled ? 50 : 10));
    const auto made = arrangeForward(seen, limits, {32, 8, 128, 128});
    CHECK(stepsOf(made.rectangles, limits).size() <= 8);
    CHECK(made.order.empty() != shuffled);
    CHECK(made.us < 400);
  }
}

}  // namespace
