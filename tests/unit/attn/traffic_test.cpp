// Bytes sent by the algorithms of softmax attention, as their plans decide.
#include <catch2/catch.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "attn/problem/mask.h"
#include "attn/problem/needed.h"
#include "attn/problem/problem.h"
#include "attn/softmax/mesh_cost.h"

namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

TEST_CASE("rings send only blocks with visible scores") {
  auto problem = seqpar::attn::Problem{};
  problem.info.nranks = 3;
  problem.queries = problem.keys = seqpar::attn::Sharding(std::vector<int64_t>{100, 80, 120});
  const auto ranges = [&](bool ofQueries) {
    problem.table = std::make_shared<seqpar::attn::ScoreTable>(problem.queries, problem.keys, problem.visibility());
    std::vector<Ranges> all;
    for (const auto& needed : problem.seenByOthers(ofQueries)) {
      all.emplace_back();
      for (const auto& range : needed) all.back().emplace_back(range.first, range.count);
    }
    return all;
  };
  CHECK(ranges(false) == std::vector<Ranges>{{{0, 100}}, {{0, 80}}, {{0, 120}}});
  problem.desc.mask = seqparAttnCausal;
  CHECK(ranges(false) == std::vector<Ranges>{{{0, 100}}, {{0, 80}}, {}});
  CHECK(ranges(true) == std::vector<Ranges>{{}, {{0, 80}}, {{0, 120}}});
  problem.desc.windowLeft = 30;
  CHECK(ranges(false) == std::vector<Ranges>{{{70, 30}}, {{50, 30}}, {}});
  CHECK(ranges(true) == std::vector<Ranges>{{}, {{0, 30}}, {{0, 30}}});
  problem.desc.windowLeft = SEQPAR_ATTN_NO_WINDOW;
  problem.cuSeqlens = {0, 90, 110, 180, 300};  // only the second document is on two ranks
  CHECK(ranges(false) == std::vector<Ranges>{{{90, 10}}, {}, {}});
}

TEST_CASE("rings send the needed ranges of shards of several pieces") {
  constexpr int64_t kBounds[] = {0, 100, 200, 300, 400};
  constexpr int kOwners[] = {0, 1, 0, 1};
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.kind = seqparPieces;
  layout.ranks = 2;
  layout.tokens = 400;
  layout.pieces = 4;
  layout.pieceBounds = kBounds;
  layout.pieceOwners = kOwners;
  auto problem = seqpar::attn::Problem{};
  problem.info.nranks = 2;
  problem.info.device = SEQPAR_HOST_DEVICE;
  problem.desc.tokens = 400;
  problem.queries = problem.keys = seqpar::attn::Sharding("test", layout);
  const std::vector<seqparAttnSlice_t> slices{SEQPAR_ATTN_SLICE_FULL(100, 140, 10, 30),
                                              SEQPAR_ATTN_SLICE_FULL(380, 400, 290, 300)};
  problem.desc.slices = 2;
  problem.desc.slice = slices.data();
  problem.slices = seqpar::attn::readSlices("test", problem.desc);
  problem.table = seqpar::attn::makeScoreTable(problem.queries, problem.keys, problem.visibility());
  const auto seen = [&](bool ofQueries) {
    std::vector<Ranges> all;
    for (const auto& needed : problem.seenByOthers(ofQueries)) {
      all.emplace_back();
      for (const auto& range : needed) all.back().emplace_back(range.first, range.count);
    }
    return all;
  };
  CHECK(seen(false) == std::vector<Ranges>{{{10, 20}, {190, 10}}, {}});
  CHECK(seen(true) == std::vector<Ranges>{{}, {{0, 40}, {180, 20}}});
  const auto runs = seqpar::attn::runsOf(problem.keys.runsOf(0), problem.seenByOthers(false)[0]);
  using seqpar::attn::TokenRun;
  CHECK(runs == std::vector<TokenRun>{{0, 10, 20, 1}, {20, 290, 10, 1}});
}

TEST_CASE("the shape of a mesh sends the fewest bytes") {
  const auto queryGroup = [](int ranks, int64_t heads, int64_t kvHeads) {
    auto problem = seqpar::attn::Problem{};
    problem.info.nranks = ranks;
    problem.desc.heads = heads;
    problem.desc.kvHeads = kvHeads;
    problem.desc.headDim = problem.desc.valueDim = 128;
    problem.desc.dataType = problem.desc.wireType = seqparBfloat16;
    problem.desc.training = 0;
    problem.queries = problem.keys =
        seqpar::attn::Sharding(std::vector<int64_t>(static_cast<std::size_t>(ranks), 1000));
    return seqpar::attn::ranksOfQueryGroup(problem);
  };
  // In units of a rank's queries a rank sends 2 (a - 1) of them and of their outputs, and 2 (b - 1) / group of keys and
  // values.
  CHECK(queryGroup(64, 32, 32) == 8);
  CHECK(queryGroup(64, 64, 8) == 2);  // 2 + 7.75; 4 would be 6 + 3.75, equal, and 1 all of a ring's 15.75
  CHECK(queryGroup(8, 32, 8) == 1);   // 3.5, a ring; 2 would be 2 + 1.5, equal except for the outputs' log-sum-exps
  CHECK(queryGroup(6, 4, 4) == 2);
  CHECK(queryGroup(7, 4, 4) == 1);
}

}  // namespace
