// Which rectangles are computed by one call of a kernel, and which keys the ranks gather: as plans for GPUs decide.
#include "attn/block/cuda_steps.h"

#include <array>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "attn/problem/mask.h"
#include "attn/problem/needed.h"
#include "attn/softmax/key_gather.h"
#include "random_slices.h"
#include "seqpar/attn_layout.h"
#include "small_desc.h"

namespace {

using namespace seqpar::attn;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

using Cells = std::multiset<std::pair<int64_t, int64_t>>;

void addCells(const Rectangle& r, Cells& cells) {
  for (int64_t i = 0; i < r.rows; ++i) {
    for (int64_t j = 0; j < r.columns; ++j) {
      if (i + r.lower <= j && (r.upper == INT64_MAX || j <= i + r.upper)) cells.emplace(r.row + i, r.column + j);
    }
  }
}

Cells cellsOf(std::span<const Rectangle> rectangles) {
  Cells cells;
  for (auto r : rectangles) {
    if (r.lower == INT64_MIN) r.lower = -r.rows;
    addCells(r, cells);
  }
  return cells;
}

/// The scores that cuDNN computes for a step.
Cells cellsOf(const BlockStep& step) {
  if (step.kind == BlockStep::Kind::Bands) return cellsOf(std::span<const Rectangle>(step.rectangles));
  Cells cells;
  for (auto r : step.rectangles) {
    CHECK((!step.bottomRight || r.rows <= r.columns));  // cuDNN's condition
    const int64_t shift = step.bottomRight ? r.columns - r.rows : 0;
    r.lower = step.left < 0 ? -r.rows : shift - step.left + 1;
    r.upper = step.right < 0 ? r.columns : shift + step.right;
    addCells(r, cells);
  }
  return cells;
}

bool apart(std::span<const Rectangle> rectangles, bool columns) {
  for (size_t a = 0; a < rectangles.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const auto &x = rectangles[a], &y = rectangles[b];
      const bool common = columns ? x.column < y.column + y.columns && y.column < x.column + x.columns
                                  : x.row < y.row + y.rows && y.row < x.row + x.rows;
      if (common) return false;
    }
  }
  return true;
}

/// A rank's part of a masked problem, without a communicator.
Problem problemOf(const std::vector<seqparAttnSlice_t>& slices, const seqparLayout_t& layout, int rank) {
  auto desc = smallDesc();
  desc.tokens = layout.tokens;
  desc.slices = static_cast<int64_t>(slices.size());
  desc.slice = slices.data();
  Problem problem;
  problem.desc.tokens = layout.tokens;
  problem.slices = readSlices("test", desc);
  problem.info.nranks = layout.ranks;
  problem.info.rank = rank;
  problem.info.device = SEQPAR_HOST_DEVICE;
  problem.queries = problem.keys = Sharding("test", layout);
  problem.table = makeScoreTable(problem.queries, problem.keys, problem.visibility());
  return problem;
}

/// The layout that seqparAttnSolveLayout() returns.
struct Solved {
  Solved(const std::vector<seqparAttnSlice_t>& slices, int64_t tokens, int ranks)
      : bounds(2 * static_cast<size_t>(ranks)), owners(bounds.size()) {
    auto desc = smallDesc();
    desc.tokens = tokens;
    desc.slices = static_cast<int64_t>(slices.size());
    desc.slice = slices.data();
    layout.kind = seqparPieces;
    layout.ranks = ranks;
    layout.tokens = tokens;
    REQUIRE(seqparAttnSolveLayout(&desc, ranks, nullptr, bounds.data(), owners.data(), &layout.pieces) ==
            seqparSuccess);
    layout.pieceBounds = bounds.data();
    layout.pieceOwners = owners.data();
  }

  std::vector<int64_t> bounds;
  std::vector<int> owners;
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
};

TEST_CASE("steps contain every score once, and no two rectangles of a step share rows", "[steps]") {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const auto tokens = static_cast<int64_t>(2 + random() % 60);
    CAPTURE(seed, round, tokens);
    const auto slices = drawSlices(random, tokens, tokens, 1 + round % 6);
    seqparLayout_t whole = SEQPAR_LAYOUT_INITIALIZER;
    whole.tokens = tokens;
    const auto problem = problemOf(slices, whole, 0);
    const TokenRun all{0, 0, tokens, 1};
    const auto rectangles = rectanglesOf({&all, 1}, {&all, 1}, problem.visibility());
    for (const bool forward : {true, false}) {
      BlockLimits limits;
      limits.cudnn = random() % 4 != 0;
      limits.leastScores = static_cast<int64_t>(random() % 40);
      limits.leastRagged = 1 + random() % 6;
      limits.sharedColumns = limits.join = forward;
      limits.changing = round % 2 == 0;
      const auto given = forward ? splitDiagonals(rectangles, 1 + round % 8) : forBackward(rectangles);
      std::vector<Rectangle> done;
      for (const auto& step : stepsOf(given, limits)) {
        CHECK(apart(step.rectangles, false));
        CHECK((forward || apart(step.rectangles, true)));
        CHECK((cellsOf(step) == cellsOf(std::span<const Rectangle>(step.rectangles))));
        done.insert(done.end(), step.rectangles.begin(), step.rectangles.end());
      }
      CHECK((cellsOf(done) == cellsOf(rectangles)));
    }
  }
}

TEST_CASE("a staircase is cut into rectangles without common columns backward, and is one step forward", "[steps]") {
  std::vector<Rectangle> stairs;
  for (int64_t frame = 0; frame < 16; ++frame) stairs.push_back({1000 * frame, 1000, 0, 1000 * (frame + 1)});
  BlockLimits limits;
  limits.cudnn = true;
  const auto cut = forBackward(stairs);
  CHECK(cut.size() == 16);
  CHECK(apart(cut, true));
  CHECK(scoresOf(cut) == scoresOf(stairs));
  limits.sharedColumns = true;
  CHECK(stepsOf(stairs, limits).size() == 1);
}

TEST_CASE("a large rectangle of whole tiles that is alone in its call is a dense call", "[steps]") {
  BlockLimits limits;
  limits.cudnn = limits.changing = true;
  limits.leastDense = 1024 * 512;
  const auto kindsOf = [&](const std::vector<Rectangle>& rectangles) {
    std::vector<BlockStep::Kind> kinds;
    for (const auto& step : stepsOf(rectangles, limits)) kinds.push_back(step.kind);
    return kinds;
  };
  using Kinds = std::vector<BlockStep::Kind>;
  const Rectangle large{0, 1024, 0, 512};
  CHECK((kindsOf({large}) == Kinds{BlockStep::Kind::Single}));
  CHECK((kindsOf({{0, 1024, 0, 511}}) == Kinds{BlockStep::Kind::Ragged}));
  CHECK((kindsOf({{0, 896, 0, 512}}) == Kinds{BlockStep::Kind::Ragged}));
  CHECK((kindsOf({{0, 1000, 0, 640}}) == Kinds{BlockStep::Kind::Ragged}));
  CHECK((kindsOf({large, {1024, 128, 512, 128}}) == Kinds{BlockStep::Kind::Ragged}));
  CHECK(kindsOf({large, {0, 1024, 512, 1024, INT64_MIN, 0}}).size() == 2);
  limits.leastDense = INT64_MAX;
  CHECK((kindsOf({large}) == Kinds{BlockStep::Kind::Ragged}));
}

TEST_CASE("whole documents, the end of one and short ones in windows are one call", "[steps]") {
  BlockLimits limits;
  limits.cudnn = limits.changing = true;
  const std::vector<Rectangle> documents{
      {0, 500, 0, 1300, INT64_MIN, 800}, {500, 700, 1300, 700, INT64_MIN, 0}, {1200, 300, 2000, 300, INT64_MIN, 0}};
  CHECK(stepsOf(documents, limits).size() == 2);
  limits.sharedColumns = limits.join = true;
  CHECK(forForward(documents, limits).size() == 3);
  REQUIRE(stepsOf(documents, limits).size() == 1);
  CHECK(stepsOf(documents, limits)[0].bottomRight);
  const std::vector<Rectangle> windows{{0, 700, 0, 700, -511, 0}, {700, 300, 700, 300, INT64_MIN, 0}};
  const auto steps = stepsOf(windows, limits);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].left == 512);
}

TEST_CASE("on 8 ranks, usual masks take few calls of a kernel and gather few keys", "[steps]") {
  constexpr int64_t kTokens = 65536, kPrompt = kTokens / 8;
  constexpr int kRanks = 8;
  std::vector<seqparAttnSlice_t> packed, prefixLm, video, shared;
  std::mt19937 random(7);
  for (int64_t at = 0; at < kTokens;) {
    const int64_t end = std::min(kTokens, at + 500 + static_cast<int64_t>(random() % 6000));
    packed.push_back(SEQPAR_ATTN_SLICE_CAUSAL(at, end, at, end));
    at = end;
  }
  prefixLm = {SEQPAR_ATTN_SLICE_FULL(0, 16384, 0, 16384), SEQPAR_ATTN_SLICE_CAUSAL(16384, kTokens, 0, kTokens)};
  for (int64_t end = 4096; end <= kTokens; end += 4096) {
    video.push_back(SEQPAR_ATTN_SLICE_FULL(end - 4096, end, 0, end));
  }
  shared = {SEQPAR_ATTN_SLICE_CAUSAL(0, kPrompt, 0, kPrompt)};
  for (int64_t at = kPrompt; at < kTokens; at += 3584) {
    shared.push_back(SEQPAR_ATTN_SLICE_FULL(at, at + 3584, 0, kPrompt));
    shared.push_back(SEQPAR_ATTN_SLICE_CAUSAL(at, at + 3584, at, at + 3584));
  }
  struct Expected {
    const std::vector<seqparAttnSlice_t>* slices;
    size_t calls;  // most of a rank, forward
    double keys;   // received, of an all-gather's
  };
  for (const auto& expected : {Expected{&packed, 3, 0.2}, {&prefixLm, 3, 0.8}, {&video, 3, 0.8}, {&shared, 3, 0.2}}) {
    const Solved solved(*expected.slices, kTokens, kRanks);
    auto problem = problemOf(*expected.slices, solved.layout, 0);
    const auto& gathered = *gatheredKeys(problem);
    CHECK(gathered.meanReceived <= expected.keys * kTokens * (kRanks - 1) / kRanks);
    BlockLimits limits;
    limits.cudnn = limits.sharedColumns = limits.changing = true;
    for (problem.info.rank = 0; problem.info.rank < kRanks; ++problem.info.rank) {
      const int rank = problem.info.rank;
      const auto seen = rectanglesOf(problem.queries.runsOf(rank), gathered.runsOf(rank), problem.visibility());
      CAPTURE(rank, expected.slices->size(), seen.size());
      CHECK(stepsOf(splitDiagonals(seen, kLeastSplitRows), limits).size() <= expected.calls);
    }
  }
}

TEST_CASE("ranks gather the keys that their queries see, in the order of their positions", "[steps]") {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  int some = 0;
  for (int round = 0; round < 200; ++round) {
    const auto tokens = static_cast<int64_t>(1 + random() % 80);
    const int ranks = 2 + static_cast<int>(random() % 4);
    const auto slices = drawSlices(random, tokens, tokens, 1 + round % 5);
    std::vector<int64_t> bounds{0, tokens};
    for (int i = 0; i < 6; ++i) bounds.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1)));
    std::sort(bounds.begin(), bounds.end());
    std::vector<int> owners(bounds.size() - 1);
    for (auto& owner : owners) owner = static_cast<int>(random() % static_cast<uint64_t>(ranks));
    seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
    layout.kind = random() % 4 == 0 ? seqparStriped : seqparPieces;
    layout.ranks = ranks;
    layout.tokens = tokens;
    layout.pieces = static_cast<int64_t>(owners.size());
    layout.pieceBounds = bounds.data();
    layout.pieceOwners = owners.data();
    const auto problem = problemOf(slices, layout, 0);
    const auto& gathered = *gatheredKeys(problem);
    CAPTURE(seed, round, tokens, ranks);
    some += gathered.ranges.empty() ? 0 : 1;
    for (int rank = 0; rank < ranks; ++rank) {
      std::set<int64_t> needed, own, got;
      for (const auto& run : problem.queries.runsOf(rank)) {
        for (int64_t t = 0; t < run.length; ++t) {
          const int64_t query = run.position + t * run.stride;
          own.insert(query);
          for (int64_t key = 0; key < tokens; ++key) {
            for (const auto& s : slices) {
              if (contains(s, query, key)) needed.insert(key);
            }
          }
        }
      }
      int64_t local = 0, last = -1;
      bool ordered = true;
      for (const auto& run : gathered.runsOf(rank)) {
        CHECK(run.local == local);
        local += run.length;
        ordered = ordered && run.position > last;
        last = run.position;
        for (int64_t t = 0; t < run.length; ++t) got.insert(run.position + t * run.stride);
      }
      CHECK(local == gathered.tokensOf(problem, rank));
      int64_t others = 0;
      for (const int64_t key : needed) others += own.contains(key) ? 0 : 1;
      CHECK(keysOfOthersNeeded(problem, rank) == others);
      if (gathered.ranges.empty()) {
        CHECK(static_cast<int64_t>(got.size()) == tokens);
      } else {
        CHECK((got == needed));
        CHECK(ordered);
        CHECK(others <= gathered.mostReceived);
      }
    }
  }
  CHECK(some > 50);
}

TEST_CASE("packings that change are ragged calls of few sizes") {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  CAPTURE(seed);
  constexpr int64_t kTokens = 8192;
  BlockLimits limits;
  limits.cudnn = limits.changing = true;
  std::set<std::array<int64_t, 5>> sizes;
  for (int packing = 0; packing < 1000; ++packing) {
    std::vector<Rectangle> documents;
    for (int64_t at = 0; at < kTokens;) {
      const int64_t length = std::min(kTokens - at, 1 + static_cast<int64_t>(random() % 4096));
      documents.push_back({at, length, at, length, INT64_MIN, 0});
      at += length;
    }
    const auto steps = stepsOf(documents, limits);
    size_t found = 0;
    for (const auto& step : steps) {
      found += step.rectangles.size();
      if (step.kind == BlockStep::Kind::Bands) continue;
      REQUIRE(step.kind == BlockStep::Kind::Ragged);
      RaggedSizes exact{static_cast<int64_t>(step.rectangles.size()), 0, 0, kTokens, kTokens};
      for (const auto& r : step.rectangles) {
        exact.rows = std::max(exact.rows, r.rows);
        exact.columns = std::max(exact.columns, r.columns);
      }
      const auto rounded = roundedUp(exact);
      REQUIRE((rounded.count >= exact.count && rounded.rows >= exact.rows && rounded.columns >= exact.columns));
      REQUIRE(roundedUp(rounded) == rounded);
      sizes.insert({rounded.count, rounded.rows, rounded.columns, rounded.allRows, rounded.allColumns});
    }
    REQUIRE(found == documents.size());
  }
  // At most 4 numbers of documents (8 to 64) and 4 longest lengths (512 to 4096), which rows and columns share.
  CHECK(sizes.size() <= 16);
}

}  // namespace
