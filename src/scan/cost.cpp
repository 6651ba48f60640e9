#include "scan/cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/convert.h"
#include "scan/algorithms.h"

namespace seqpar {
namespace {

// Work of an algorithm's step in units of a streaming hop (receive, combine, write the result, send on), per byte.
constexpr double kPack = 0.35;   // write the own state to a message
constexpr double kFold = 0.35;   // combine one received state into an accumulator
constexpr double kFinish = 0.6;  // the hop at the end, which sends nothing
constexpr double kCopy = 0.5;    // copy a received message aside
constexpr size_t kLeastBlock = size_t{16}
                               << 10;  // smaller ones cost more than the model's overhead, that of empty messages
constexpr double kScratch = 0.5e-6;    // seconds to set up the maps that DOUBLING composes

/// Quantities that all formulas share. Seconds and bytes.
struct Terms {
  double ranks;     // P
  double state;     // m: bytes of a state on the wire
  double element;   // bytes of a state with its transition
  double alpha;     // latency of a hop
  double overhead;  // cost of a message
  double perByte;   // streaming hop, all ranks at work
  double alone;     // the same with one rank at work
  double wave;      // latency of a step that all ranks take together
};

/// ZeCO's pipeline, with the latency and the overhead that the paper's form leaves out. On a host every rank's own work
/// on a block is a stage, so P stages fill, and then K-1 blocks follow.
double chainSeconds(const Terms& t, double blocks) {
  const double block = t.state / blocks;
  return (t.ranks - 1) * t.alpha + t.ranks * (t.overhead + block * t.alone) +
         (blocks - 1) * (t.overhead + block * t.perByte);
}

/// The last position combines P-1 elements; all together combine half of that each.
double foldsSeconds(const Terms& t, double elements) {
  return elements * t.element * kFold * std::max(t.alone, t.perByte / 2);
}

double oneshotSeconds(const Terms& t, double blocks) {
  return t.wave + blocks * (t.ranks - 1) * t.overhead + t.element * kPack * t.perByte + foldsSeconds(t, t.ranks - 1) +
         t.state * kFinish * t.perByte;
}

double transposedSeconds(const Terms& t, double blocks) {
  return 2 * t.wave + blocks * 2 * t.ranks * t.overhead + t.element * (kPack + kFold) * t.perByte +
         t.state * (kPack + kFinish) * t.perByte;
}

double doublingSeconds(const Terms& t, double blocks) {
  const double rounds = t.ranks <= 2 ? 1 : std::ceil(std::log2(t.ranks - 1) + std::log2(4.0 / 3.0));
  return kScratch + rounds * (t.wave + blocks * t.overhead + t.element * (kPack + kFold) * t.perByte) +
         t.state * kFinish * t.perByte;
}

/// Blocking: whole states are received, then combined, then sent.
double lasp1Seconds(const Terms& t) {
  return (t.ranks - 1) * (t.alpha + t.overhead + t.state * (kCopy + kFinish + kPack) * t.alone);
}

/// Every rank copies all elements aside before it combines those that it needs.
double lasp2Seconds(const Terms& t) {
  return t.wave + (t.ranks - 1) * (t.overhead + t.element * kCopy * t.perByte) + t.element * kPack * t.perByte +
         foldsSeconds(t, t.ranks - 1) + t.state * kFinish * t.perByte;
}

/// Sizes of the runs of positions that share a node; empty if a node's positions are not neighbours.
std::vector<int> nodeRuns(std::span<const int> nodes) {
  std::vector<int> runs;
  std::map<int, bool> seen;
  for (size_t p = 0; p < nodes.size(); ++p) {
    if (p > 0 && nodes[p] == nodes[p - 1]) {
      ++runs.back();
      continue;
    }
    if (!seen.try_emplace(nodes[p], true).second) return {};
    runs.push_back(1);
  }
  return runs;
}

/// Transposed inside the nodes around a chain of shards between them.
double hierSeconds(const Terms& node, const Link& network, std::span<const int> runs, double blocks) {
  if (runs.empty()) return std::numeric_limits<double>::infinity();
  const double rails = *std::min_element(runs.begin(), runs.end());
  const double shard = node.state / rails / blocks;
  const double hops = static_cast<double>(runs.size()) - 1;
  return transposedSeconds(node, blocks) + hops * (network.alpha + network.overhead + shard * network.secondsPerByte) +
         (blocks - 1) * (network.overhead + shard * network.secondsPerByte);
}

Terms makeTerms(const ScanProblem& problem, const Link& link, double ranks, double contention) {
  Terms t{};
  t.ranks = ranks;
  t.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  const double head =
      static_cast<double>(problem.dk) * (problem.op == seqparScanMatrix ? static_cast<double>(problem.dk) : 1);
  const bool perRow = problem.op == seqparScanDiag || problem.op == seqparScanMatrix;
  t.element = t.state + static_cast<double>(problem.heads) * (perRow ? head : 1) * sizeof(float);
  t.alpha = link.alpha;
  t.overhead = link.overhead;
  t.perByte = link.secondsPerByte;
  t.alone = link.secondsPerByte / contention;
  t.wave = link.alpha * contention;
  return t;
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateScan(const ScanProblem& problem, const ScanSetting& setting, int blocks) {
  const auto& links = setting.links;
  const auto runs = nodeRuns(setting.nodes);
  const bool oneNode = runs.size() <= 1;
  const auto ranks = static_cast<double>(setting.positions);
  // A flat algorithm crosses the network at every step that some rank takes across it.
  const Terms flat = makeTerms(problem, oneNode ? links.node : links.network, ranks, links.contention);
  const double perNode = runs.empty() ? 1 : *std::max_element(runs.begin(), runs.end());
  const Terms local = makeTerms(problem, links.node, perNode, links.contention);

  const auto seconds = [&](int algorithm, double k) {
    switch (algorithm) {
      case seqparScanChain:
        return chainSeconds(flat, k);
      case seqparScanOneshot:
        return oneshotSeconds(flat, k);
      case seqparScanTransposed:
        return transposedSeconds(flat, k);
      case seqparScanDoubling:
        return doublingSeconds(flat, k);
      case seqparScanHier:
        return hierSeconds(local, links.network, runs, k);
      case seqparScanLasp1:
        return lasp1Seconds(flat);
      default:
        return lasp2Seconds(flat);
    }
  };

  std::vector<seqparScanEstimate_t> out;
  for (int algorithm = seqparScanChain; algorithm <= seqparScanLasp2; ++algorithm) {
    seqparScanEstimate_t best{algorithm, std::max(1, blocks), std::numeric_limits<double>::infinity()};
    const bool fits = scanFits(static_cast<seqparScanAlgorithm_t>(algorithm), problem, setting.positions,
                               setting.maxMessage, setting.window);
    const bool pipelined = algorithm == seqparScanChain || algorithm == seqparScanHier;
    const auto most = pipelined && blocks == 0 ? std::max<size_t>(1, static_cast<size_t>(flat.state) / kLeastBlock) : 1;
    for (size_t k = 1; fits && k <= std::min<size_t>(most, 4096); k *= 2) {
      const int count = blocks > 0 ? blocks : static_cast<int>(k);
      const double us = setting.positions == 1 ? 0 : seconds(algorithm, count) * 1e6;
      if (us < best.modelUs) best = {algorithm, count, us};
    }
    out.push_back(best);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.modelUs < b.modelUs; });
  return out;
}

seqparScanEstimate_t chooseScan(std::span<const seqparScanEstimate_t> estimates, int algorithm) {
  const auto named = std::find_if(estimates.begin(), estimates.end(),
                                  [&](const auto& estimate) { return estimate.algorithm == algorithm; });
  return named == estimates.end() ? estimates.front() : *named;
}

}  // namespace seqpar
