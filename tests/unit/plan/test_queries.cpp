// The planner over the C interface.
#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "common/ranks.h"
#include "common/timeouts.h"
#include "seqpar/plan.h"

using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

/// Two nodes of two threads each.
std::string onTwoNodes(const std::function<void(seqparComm_t, int)>& body) {
  seqparUniqueId id;
  REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  return onThreads(4, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.hostId = rank < 2 ? "first" : "second";
    config.timeoutMs = kNoTimeoutMs;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, 4, id, rank, &config), "seqparCommInitRankConfig");
    body(comm, rank);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
}

seqparLinkInfo_t query(seqparComm_t comm, int linkClass) {
  seqparLinkInfo_t info = SEQPAR_LINK_INFO_INITIALIZER;
  expectSuccess(seqparLinkQuery(comm, linkClass, &info), "seqparLinkQuery", comm);
  return info;
}

double estimate(seqparComm_t comm, int move, size_t bytes, const std::vector<int>& ranks) {
  double us = -1;
  expectSuccess(seqparMoveEstimate(move, bytes, ranks.data(), static_cast<int>(ranks.size()), comm, &us),
                "seqparMoveEstimate", comm);
  return us;
}

}  // namespace

TEST_CASE("the assumptions of cost models are equal on all ranks") {
  const auto errors = onTwoNodes([&](seqparComm_t comm, int) {
    seqparPlanInfo_t info = SEQPAR_PLAN_INFO_INITIALIZER;
    expectSuccess(seqparPlanQuery(comm, &info), "seqparPlanQuery", comm);
    expect(info.ranksPerNode == 2, info.ranksPerNode, " ranks of a node");
    expect(info.gpuArch == 0 && info.gpuSms == 0, "hosts have no GPU");
    expect(seqparPlanQuery(comm, nullptr) == seqparInvalidArgument, "NULL is accepted");
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("link classes are counted and measured equally on all ranks") {
  std::array<std::array<double, 3>, 4> alpha{};
  const auto errors = onTwoNodes([&](seqparComm_t comm, int rank) {
    const std::array<int, 3> pairs{2, 0, 4};
    for (int linkClass = 0; linkClass < SEQPAR_LINK_CLASSES; ++linkClass) {
      const auto info = query(comm, linkClass);
      expect(info.pairs == pairs[static_cast<size_t>(linkClass)], "class ", linkClass, " has ", info.pairs, " pairs");
      expect(info.alphaUs > 0 && info.bandwidth > 0 && info.overheadUs >= 0, "class ", linkClass, " has no constants");
      expect(info.remembered == 0, "nothing is remembered");
      alpha[static_cast<size_t>(rank)][static_cast<size_t>(linkClass)] = info.alphaUs;
    }
  });
  INFO(errors);
  CHECK(errors.empty());
  for (const auto& ofRank : alpha) CHECK(ofRank == alpha[0]);
}

TEST_CASE("estimates follow the measured constants of the group's links") {
  const auto errors = onTwoNodes([&](seqparComm_t comm, int) {
    const auto near = query(comm, seqparLinkProcess);
    const auto far = query(comm, seqparLinkNetwork);
    seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
    expectSuccess(seqparCommQuery(comm, &info), "seqparCommQuery", comm);
    const auto expected = [&](const seqparLinkInfo_t& link, double bytes) {
      return link.alphaUs * info.contention + link.overheadUs + bytes / link.bandwidth * 1e6;
    };
    const double inside = estimate(comm, seqparMoveShift, 1000000, {0, 1});
    expect(inside == Approx(expected(near, 1e6)), "a shift inside a node takes ", inside);
    // Each node sends one rank's tensors, of two, to the other node.
    const double between = estimate(comm, seqparMoveShift, 1000000, {0, 1, 2, 3});
    expect(between >= Approx(expected(far, 1e6)), "a shift between nodes takes ", between);
    const double round = estimate(comm, seqparMoveRing, 1000000, {0, 1, 2, 3});
    expect(round == Approx(3 * between), "a ring takes ", round);
    for (int move = 0; move < SEQPAR_MOVES; ++move) {
      double us = -1;
      expectSuccess(seqparMoveEstimate(move, 1000, nullptr, 0, comm, &us), "seqparMoveEstimate", comm);
      expect(us == estimate(comm, move, 1000, {0, 1, 2, 3}), "movement ", move, " of all ranks takes ", us);
      expect(us > 0, "movement ", move, " takes no time");
    }
    expect(estimate(comm, seqparMoveShift, 1000, {2}) == 0, "a shift of one rank takes time");
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("bad arguments of the planner's queries") {
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  seqparLinkInfo_t info = SEQPAR_LINK_INFO_INITIALIZER;
  CHECK(seqparLinkQuery(comm, 3, &info) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(comm), Contains("linkClass is 3"));
  CHECK(seqparLinkQuery(comm, 0, nullptr) == seqparInvalidArgument);
  double us = 7;
  CHECK(seqparMoveEstimate(-1, 1, nullptr, 0, comm, &us) == seqparInvalidArgument);
  CHECK(seqparMoveEstimate(0, 1, nullptr, 0, comm, nullptr) == seqparInvalidArgument);
  const std::array<int, 2> ranks{0, 0};
  CHECK(seqparMoveEstimate(0, 1, ranks.data(), 2, comm, &us) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(comm), Contains("nranks is 2"));
  CHECK(us == 7);
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
}

TEST_CASE("auto selects algorithms that multiply factors only for SUM and bounded factors") {
  constexpr int kRanks = 8;
  const auto errors = onCommunicator(kRanks, [](seqparComm_t comm, int) {
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.heads = params.dk = 1;
    params.dv = 4;
    for (const int op : {int{seqparScanSum}, int{seqparScanDiag}, int{seqparScanMatrix}}) {
      for (const int bounded : {0, 1}) {
        params.op = op;
        params.bounded = bounded;
        std::array<seqparScanEstimate_t, SEQPAR_SCAN_ALGORITHMS + 1> all{};
        expectSuccess(seqparAllScanPlan(&params, comm, all.data()), "seqparAllScanPlan", comm);
        const bool skips = op != seqparScanSum && bounded == 0 && all[1].algorithm == seqparScanDoubling;
        const auto& expected = all[skips ? 2 : 1];
        expect(all[0].algorithm == expected.algorithm, "op ", op, ", bounded ", bounded, ": ", all[0].algorithm,
               ", expected ", expected.algorithm);
      }
    }
    params.bounded = 2;
    std::array<seqparScanEstimate_t, SEQPAR_SCAN_ALGORITHMS + 1> all{};
    expect(seqparAllScanPlan(&params, comm, all.data()) == seqparInvalidArgument, "bounded 2 was taken");
  });
  CHECK(errors == "");
}
