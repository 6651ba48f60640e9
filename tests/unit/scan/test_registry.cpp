// The table of algorithms: every row is complete, every number has one, and null or unknown entries are refused by
// name.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "base/current_call.h"
#include "base/error.h"
#include "scan/backend.h"
#include "scan/cost.h"

using namespace seqpar;

namespace {

ScanProblem problemOf(seqparScanOp_t op) {
  ScanProblem problem;
  problem.op = op;
  problem.heads = 4;
  problem.dk = problem.dv = 16;
  return problem;
}

std::string errorOf(int id) {
  const CurrentCall call("seqparAllScan");
  try {
    scanAlgorithm(id, "params->algorithm");
  } catch (const Error& error) {
    CHECK(error.result() == seqparInvalidArgument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every row has an id, a distinct name, a paper and a host implementation") {
  std::set<std::string> names;
  int id = seqparScanAuto;
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    CAPTURE(row.name);
    CHECK(row.id == ++id);  // in the order of the public enum, and none is left out
    CHECK(names.insert(row.name).second);
    CHECK(std::strcmp(row.name, "auto") != 0);
    CHECK(std::strlen(row.paper) > 0);
    CHECK(row.host.run != nullptr);
    CHECK(row.host.seconds != nullptr);
    CHECK(std::string(seqparScanAlgorithmName(row.id)) == row.name);
    CHECK(&scanAlgorithm(row.id) == &row);
  }
  CHECK(id == SEQPAR_SCAN_ALGORITHMS);
  CHECK(scanAlgorithmChoices().size() == names.size() + 1);
}

TEST_CASE("an invalid enum value is an error with call, argument, value and expectation") {
  for (const int id : {-1, static_cast<int>(seqparScanAuto), SEQPAR_SCAN_ALGORITHMS + 1, 1 << 30}) {
    const std::string text = errorOf(id);
    CAPTURE(text);
    CHECK_THAT(text, Catch::Contains("seqparAllScan: params->algorithm is " + std::to_string(id)));
    for (const ScanAlgorithm& row : scanAlgorithms()) CHECK_THAT(text, Catch::Contains(row.name));
  }
  const std::vector<int> nodes(2, 0);
  const auto all = ncclScanEstimates(problemOf(seqparScanDiag), nodes, {{1e-5, 1e-11}, {1e-5, 1e-11}}, 0);
  CHECK(chooseScan(all, seqparScanAuto).algorithm == all.front().algorithm);
  CHECK_THROWS_AS(chooseScan(all, SEQPAR_SCAN_ALGORITHMS + 1), Error);
}

TEST_CASE("unsupported algorithms have infinite time on a backend, all others a finite time") {
  const std::vector<int> nodes(4, 0);
  const auto nccl = ncclScanEstimates(problemOf(seqparScanDiag), nodes, {{1e-5, 1e-11}, {1e-5, 1e-11}}, 0);
  const auto peers = estimateDeviceScan(problemOf(seqparScanDiag), 4, {1e-6, 1e11}, 32);
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    CAPTURE(row.name);
    CHECK(std::isfinite(chooseScan(nccl, row.id).modelUs) == (row.nccl.seconds != nullptr));
    CHECK(std::isfinite(chooseScan(peers, row.id).modelUs) == (row.peers.seconds != nullptr));
  }
}

TEST_CASE("algorithms without a maker on a backend are refused with the list of supported ones") {
  const auto onNccl = [](const ScanAlgorithm& row) { return row.nccl.seconds != nullptr; };
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    if (onNccl(row)) continue;
    try {
      refuseAlgorithm(row, "over NCCL", onNccl);
    } catch (const Error& error) {
      CHECK(error.result() == seqparInvalidUsage);
      CHECK_THAT(error.what(), Catch::Contains("the algorithm " + std::string(row.name) + " is not done over NCCL"));
      CHECK_THAT(error.what(), Catch::Contains("expected " + scanAlgorithmsThat(onNccl)));
      CHECK_THAT(scanAlgorithmsThat(onNccl), !Catch::Contains(row.name));
    }
  }
}

TEST_CASE("lists in error texts contain all rows") {
  CHECK(scanAlgorithmsThat([](const ScanAlgorithm&) { return false; }) == "auto");
  CHECK(scanAlgorithmsThat([](const ScanAlgorithm& row) { return row.id == seqparScanHier; }) == "hier or auto");
  CHECK(scanAlgorithmsThat([](const ScanAlgorithm& row) { return row.id <= seqparScanOneshot; }) ==
        "chain, oneshot or auto");
}
