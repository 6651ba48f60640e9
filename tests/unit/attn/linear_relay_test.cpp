// Ranks that send states from rank to rank head by head compute each head in one pass, as one rank does.
#include <array>
#include <initializer_list>
#include <map>
#include <memory>
#include <numeric>

#include "attn/boundary.h"
#include "attn/linear/algorithms.h"
#include "attn/linear/host/turns.h"
#include "common/covering.h"
#include "common/timeouts.h"
#include "linear_check.h"
#include "linear_rank.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn;
using namespace seqpar::attn::test;
using seqpar::test::covers;
using seqpar::test::DecayStrength;
using seqpar::test::linearFamilies;

constexpr int64_t kTokens = 128;  // of a rank: whole chunks, as one rank has

/// The tokens of all ranks' tensors of one kind.
Numbers whole(const std::vector<RankArrays>& ranks, Numbers RankArrays::*tensor) {
  Numbers all;
  for (const auto& rank : ranks) all.insert(all.end(), (rank.*tensor).begin(), (rank.*tensor).end());
  return all;
}

using Turns = std::vector<std::shared_ptr<linear::RelayTurns>>;

Turns turnsOf(const RankThreads& ranks, int count) {
  Turns turns;
  for (int r = 0; r < count; ++r) turns.push_back(linear::RelayTurns::of(ranks[r]));
  return turns;
}

/// Lets the next forward and the backward after it compute states first, or not.
void choose(const Turns& turns, bool statesFirst) {
  const int length = statesFirst ? 1 : 2;
  for (const auto& rank : turns) {
    rank->startsAndEnds(seqparForward);
    for (const auto direction : {seqparReverse, seqparForward, seqparReverse}) {
      for (int call = 0; call < length; ++call) rank->startsAndEnds(direction);
    }
  }
}

TEST_CASE("states are expected first where each call changes the direction") {
  linear::RelayTurns turns;
  const auto calls = [&](std::initializer_list<seqparDirection_t> directions) {
    bool first = false;
    for (const auto direction : directions) first = turns.startsAndEnds(direction);
    return first;
  };
  const auto f = seqparForward, b = seqparReverse;
  CHECK_FALSE(calls({f}));
  CHECK_FALSE(calls({b}));
  CHECK(calls({f}));
  CHECK(calls({b}));
  CHECK(calls({f}));
  CHECK_FALSE(calls({f}));
  CHECK(calls({b}));
  CHECK_FALSE(calls({b}));
  CHECK_FALSE(calls({f}));
  CHECK_FALSE(calls({b}));
  CHECK(calls({f}));
}

TEST_CASE("states that are sent head by head give the bits of one rank") {
  const int threads = GENERATE(1, 2), count = GENERATE(2, 3);
  const bool statesFirst = GENERATE(false, true);
  if (!covers(static_cast<size_t>(threads), static_cast<size_t>(count), statesFirst, 2)) return;
  const int64_t heads = 8 * threads;
  const seqpar::test::Seed seed;
  const RankThreads ranks(count);
  for (const int family : linearFamilies()) {
    CAPTURE(family, threads, count, statesFirst);
    const RankSizes sizes{family, kTokens, heads, 8};
    std::vector<RankArrays> parts;
    for (int r = 0; r < count; ++r) parts.emplace_back(sizes, seed + static_cast<unsigned>(r));
    RankArrays one({family, count * kTokens, heads, 8}, seed);
    one.q = whole(parts, &RankArrays::q), one.k = whole(parts, &RankArrays::k), one.v = whole(parts, &RankArrays::v);
    one.dOut = whole(parts, &RankArrays::dOut);
    for (size_t gate = 0; gate < 2; ++gate) {
      const size_t values = one.gateValues(gate) / static_cast<size_t>(count);
      if (one.gateIsPerHead(gate)) {
        for (auto& part : parts) part.gates[gate] = one.gates[gate];
      }
      for (size_t r = 0; r < parts.size() && !one.gateIsPerHead(gate); ++r) {
        std::copy_n(parts[r].gates[gate].begin(), values, one.gates[gate].begin() + static_cast<long>(r * values));
      }
    }
    runRank(seqparAttnZeco, nullptr, threads, one);
    const Turns turns = turnsOf(ranks, count);
    choose(turns, statesFirst);
    ranks.each([&](int rank) {
      runRank(seqparAttnZeco, ranks[rank], threads, parts[static_cast<size_t>(rank)]);
      return std::string();
    });
    CHECK(whole(parts, &RankArrays::out) == one.out);
    CHECK(parts.back().final == one.final);
    for (size_t r = 1; r < parts.size(); ++r) CHECK(parts[r].saved == parts[r - 1].final);
    if (!seqpar::attn::linear::findFamily(family)->isDelta()) continue;  // others compute gradients in two passes
    CHECK(whole(parts, &RankArrays::dq) == one.dq);
    CHECK(whole(parts, &RankArrays::dk) == one.dk);
    CHECK(whole(parts, &RankArrays::dv) == one.dv);
  }
}

TEST_CASE("states that are sent head by head agree with the recurrence") {
  const auto lengths =
      GENERATE(std::vector<int64_t>{70, 130}, std::vector<int64_t>{60, 0, 140}, std::vector<int64_t>{0, 199, 1});
  const bool statesFirst = GENERATE(false, true);
  const seqpar::test::Seed seed;
  const RankThreads ranks(static_cast<int>(lengths.size()));
  const Turns turns = turnsOf(ranks, static_cast<int>(lengths.size()));
  for (const int family : linearFamilies()) {
    for (const bool packed : {false, true}) {
      if (!covers(static_cast<size_t>(family), lengths.size() + lengths.size() * statesFirst, packed, 2)) continue;
      LinearCase c;
      c.family = family;
      c.tokens = 200;
      c.batch = 2;
      c.heads = family % 2 == 0 ? 12 : 6;
      c.keyHeads = 6;
      c.dk = 6;
      c.dv = 5;
      c.hasInitial = c.hasFinalGradient = true;
      c.strength = packed ? DecayStrength::Mixed : DecayStrength::Weak;
      if (packed) c.cuSeqlens = {0, 0, 65, 66, 190, 200}, c.batch = 1;
      c.fill(seed);
      LinearOptions options;
      options.algorithm = seqparAttnZeco;
      options.onStream = packed != (family % 2 == 0);
      options.repeats = 2;
      CAPTURE(c.describe(), lengths, statesFirst);
      choose(turns, statesFirst);
      check(ranks, c, lengths, options);
      options.training = false;
      choose(turns, statesFirst);
      check(ranks, c, lengths, options);
    }
  }
}

TEST_CASE("plans of states that are sent head by head are prepared without messages") {
  const RankThreads ranks(2, [](int) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = seqpar::test::kNoTimeoutMs;  // a wait for the other rank, which prepares no plan, hangs
    return config;
  });
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  REQUIRE(seqparCommQuery(ranks[0], &info) == seqparSuccess);
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = seqparAttnGatedDelta;
  desc.algorithm = seqparAttnZeco;
  desc.tokens = 2 * kTokens;
  desc.heads = 8 * info.mostThreads;
  desc.headDim = 8;
  std::array<seqparAttnPlan_t, 2> plans{};
  const auto said = ranks.each([&](int rank) {  // with SEQPAR_CHECK, the creation compares the ranks' arguments
    return std::string(
        seqparGetErrorString(seqparAttnPlanCreate(&plans.at(static_cast<size_t>(rank)), &desc, ranks[rank])));
  });
  REQUIRE(said == std::vector<std::string>(2, seqparGetErrorString(seqparSuccess)));
  CHECK(seqparAttnPlanPrepare(plans[0], nullptr, 0) == seqparSuccess);
  for (auto* const plan : plans) CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}

/// A problem of `headsOfThread` heads for each thread of a rank. With two ranks, 8 are a pipeline, 2 are not.
Problem problemOf(int family, int64_t headsOfThread, seqparComm_t comm) {
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(comm, &info), "test", comm);
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = family;
  desc.tokens = 2048;
  desc.heads = headsOfThread * info.mostThreads;
  desc.headDim = 64;
  return readProblem("test", &desc, comm);
}

TEST_CASE("AUTO expects one pass of ZECO where states are sent head by head") {
  const RankThreads ranks(2);
  for (const int family : linearFamilies()) {
    for (const int64_t heads : {1, 2, 8}) {
      CAPTURE(family, heads);
      const Problem problem = problemOf(family, heads, ranks[0]);
      std::map<int, Estimate> estimates;
      const auto candidates = candidatesFor(problem, true);
      for (const auto& candidate : candidates) estimates[candidate.row->id] = candidate.estimate;
      const auto local = estimates.at(seqparAttnLocal), zeco = estimates.at(seqparAttnZeco);
      const bool relays = heads == 8;
      CHECK(linear::relays(problem) == relays);
      if (relays) {
        CHECK(zeco.forwardUs == Approx(local.forwardUs * 9 / 8));
        CHECK(chooseAlgorithm("test", problem, candidates).id == seqparAttnZeco);
      } else {
        CHECK(zeco.forwardUs >= 1.3 * local.forwardUs);
      }
      if (!relays || !linear::findFamily(family)->isDelta()) continue;
      CHECK(zeco.backwardUs == Approx(local.backwardUs * 9 / 8));
    }
  }
}

}  // namespace
