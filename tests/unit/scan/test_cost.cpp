#include "scan/cost.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

using namespace seqpar;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ScanProblem problemOf(size_t heads, size_t dk, size_t dv, seqparScanOp_t op = seqparScanDiag) {
  ScanProblem problem;
  problem.op = op;
  problem.heads = heads;
  problem.dk = dk;
  problem.dv = dv;
  return problem;
}

/// Links of 1 us, 10 GB/s and 0.1 us per block inside a node, `slower` times worse between nodes.
ScanSetting settingOf(const std::vector<int>& nodes, double slower = 1) {
  ScanSetting setting;
  setting.positions = static_cast<int>(nodes.size());
  setting.nodes = nodes;
  setting.links.node = {1e-6, 1e-10, 1e-7};
  setting.links.network = {1e-6 * slower, 1e-10 * slower, 1e-7 * slower};
  setting.maxMessage = size_t{256} << 10;
  setting.window = size_t{1} << 20;
  return setting;
}

seqparScanEstimate_t of(const std::vector<seqparScanEstimate_t>& all, int algorithm) {
  return chooseScan(all, algorithm);
}

}  // namespace

TEST_CASE("the chain's estimate is the pipeline formula, at its best number of blocks") {
  const std::vector<int> nodes(4, 0);
  const auto setting = settingOf(nodes);
  const auto problem = problemOf(32, 128, 128);
  const double bytes = 32 * 128 * 128 * 4.0;
  const auto formula = [&](double k) {
    const double block = bytes / k * 1e-10;
    return 1e6 * (3 * 1e-6 + 4 * (1e-7 + block) + (k - 1) * (1e-7 + block));
  };
  for (const int k : {1, 3, 16}) {
    const auto chain = of(estimateScan(problem, setting, k), seqparScanChain);
    CHECK(chain.blocks == k);
    CHECK(chain.modelUs == Approx(formula(k)));
  }
  const auto best = of(estimateScan(problem, setting, 0), seqparScanChain);
  for (int k = 1; k <= 1024; k *= 2) CHECK(best.modelUs <= formula(k) * (1 + 1e-12));
}

TEST_CASE("reading a state in place halves the cost of a chain of two") {
  const std::vector<int> nodes(2, 0);
  auto setting = settingOf(nodes);
  const auto problem = problemOf(32, 128, 128);
  const auto sent = of(estimateScan(problem, setting, 0), seqparScanChain);
  setting.access.readable = true;
  const auto read = of(estimateScan(problem, setting, 0), seqparScanChain);
  CHECK(read.modelUs == Approx(sent.modelUs / 2));
  CHECK(read.blocks == sent.blocks);
}

TEST_CASE("small states take few steps, large ones the pipeline") {
  const std::vector<int> nodes(8, 0);
  const auto setting = settingOf(nodes);
  const auto small = estimateScan(problemOf(1, 4, 16), setting, 0);
  CHECK(small.front().algorithm == seqparScanOneshot);
  const auto large = estimateScan(problemOf(512, 128, 128), setting, 0);
  CHECK(large.front().algorithm == seqparScanChain);
  CHECK(large.front().blocks > 8);
}

TEST_CASE(
    "on hosts with a processor for each rank, medium states are published once and larger ones take the pipeline") {
  // Links of an Intel Xeon. The times of a chain between ranks that run ahead of each other are lower.
  struct Row {
    int ranks = 0;
    Link link;
  };
  for (const Row& row : {Row{4, {0.214e-6, 1 / 6.58e9, 0.0788e-6}}, Row{8, {0.226e-6, 1 / 5.42e9, 0.138e-6}}}) {
    const std::vector<int> nodes(static_cast<size_t>(row.ranks), 0);
    auto setting = settingOf(nodes);
    setting.links.node = setting.links.network = row.link;
    const auto choice = [&](size_t heads, size_t dk, size_t dv) {
      return estimateScan(problemOf(heads, dk, dv), setting, 0).front().algorithm;
    };
    CAPTURE(row.ranks);
    CHECK(choice(1, 2, 128) == seqparScanOneshot);   // 1 KiB
    CHECK(choice(1, 32, 128) == seqparScanOneshot);  // 16 KiB
    CHECK(choice(1, 128, 128) == seqparScanChain);   // 64 KiB
    CHECK(choice(4, 128, 128) == seqparScanChain);   // 256 KiB
    CHECK(choice(64, 128, 128) == seqparScanChain);  // 4 MiB
  }
}

TEST_CASE("ranks that share processors take the pipeline, which sends the fewest messages") {
  for (const int ranks : {4, 8}) {
    const std::vector<int> nodes(static_cast<size_t>(ranks), 0);
    auto setting = settingOf(nodes);
    const auto choice = [&](size_t heads) {
      return estimateScan(problemOf(heads, 1, 16), setting, 0).front().algorithm;
    };
    CAPTURE(ranks);
    CHECK(choice(1) == seqparScanOneshot);
    setting.links.contention = ranks / 2;
    for (const size_t heads : {1, 64, 1024}) CHECK(choice(heads) == seqparScanChain);
  }
}

TEST_CASE("a rank fetches each shard's messages from another processor, but not over a network") {
  const std::vector<int> together(4, 0);
  const std::vector<int> apart{0, 1, 2, 3};
  const auto problem = problemOf(32, 128, 128);
  const auto near = of(estimateScan(problem, settingOf(together), 0), seqparScanTransposed);
  const auto far = of(estimateScan(problem, settingOf(apart), 0), seqparScanTransposed);
  CHECK(near.modelUs - far.modelUs == Approx(2 * 3 * 1.0));
}

TEST_CASE("a scan of scattered nodes crosses the network in every step") {
  const std::vector<int> scattered{0, 1, 0, 1};
  const auto problem = problemOf(1, 4, 16);
  const auto fast = of(estimateScan(problem, settingOf(scattered), 0), seqparScanOneshot);
  const auto slow = of(estimateScan(problem, settingOf(scattered, 50), 0), seqparScanOneshot);
  CHECK(slow.modelUs == Approx(50 * fast.modelUs));
}

TEST_CASE("between slow nodes the hierarchical scan wins, and scattered nodes rule it out") {
  std::vector<int> nodes(16);
  for (size_t p = 0; p < nodes.size(); ++p) nodes[p] = static_cast<int>(p / 8);
  const auto problem = problemOf(32, 128, 128);
  CHECK(estimateScan(problem, settingOf(nodes, 50), 0).front().algorithm == seqparScanHier);
  for (size_t p = 0; p < nodes.size(); ++p) nodes[p] = static_cast<int>(p % 2);
  const auto scattered = estimateScan(problem, settingOf(nodes, 50), 0);
  CHECK(of(scattered, seqparScanHier).modelUs == kInfinity);
  CHECK(scattered.back().algorithm == seqparScanHier);
}

TEST_CASE("a transition larger than a message leaves only algorithms that send none") {
  const std::vector<int> nodes(4, 0);
  const auto all = estimateScan(problemOf(2, 1024, 16, seqparScanMatrix), settingOf(nodes), 0);
  for (const auto& estimate : all) {
    const ScanTraffic traffic = scanAlgorithm(estimate.algorithm).traffic;
    const bool possible = traffic == ScanTraffic::States || traffic == ScanTraffic::Bytes;
    CAPTURE(estimate.algorithm);
    CHECK((estimate.modelUs != kInfinity) == possible);
  }
  CHECK(of(all, seqparScanAuto).algorithm == seqparScanChain);
}

TEST_CASE("one rank costs nothing, and the named algorithm is chosen") {
  const std::vector<int> nodes(1, 0);
  const auto all = estimateScan(problemOf(2, 8, 8), settingOf(nodes), 0);
  CHECK(all.size() == scanAlgorithms().size());
  for (const auto& estimate : all) CHECK(estimate.modelUs == 0);
  for (const ScanAlgorithm& row : scanAlgorithms()) CHECK(chooseScan(all, row.id).algorithm == row.id);
}
