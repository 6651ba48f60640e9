// What All-Scan over NCCL should cost. A step of small messages costs alpha; what a rank receives, or sends if that is
// more, costs its bytes.
#include <algorithm>
#include <limits>
#include <map>

#include "base/convert.h"
#include "base/error.h"
#include "scan/cut.h"
#include "scan/nccl_scan.h"

namespace seqpar {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kLeastBlock = std::size_t{64} << 10;  // bytes; smaller blocks are all latency
constexpr std::size_t kMostBlocks = 64;

/// What the formulas share: positions, and bytes of a state and of a map.
struct Terms {
  double positions = 1, state = 0, map = 0;
};

double stepSeconds(const NcclLink& link, double bytes) {
  return link.alpha + bytes * link.secondsPerByte;
}

/// Block k reaches the last position after P - 1 + k steps.
double chainSeconds(const NcclLink& link, double positions, double bytes, double blocks) {
  return (positions - 2 + blocks) * stepSeconds(link, bytes / blocks);
}

double transposedSeconds(const NcclLink& link, const Terms& terms) {
  const double others = (terms.positions - 1) / terms.positions;
  return stepSeconds(link, others * terms.map) + stepSeconds(link, others * terms.state);
}

/// Sizes of the nodes, 0 for all if HIER cannot be done with them.
struct Nodes {
  int count = 0, smallest = 0, largest = 0;
};

Nodes countNodes(std::span<const int> nodes) {
  std::map<int, int> sizes;
  for (const int node : nodes) ++sizes[node];
  std::vector<int> order(nodes.size());
  Nodes result;
  try {
    result.smallest = hierRails({order, 0, nodes});
  } catch (const Error&) {
    return result;
  }
  result.count = static_cast<int>(sizes.size());
  for (const auto& [node, size] : sizes) result.largest = std::max(result.largest, size);
  return result;
}

}  // namespace

std::vector<seqparScanEstimate_t> ncclScanEstimates(const ScanProblem& problem, std::span<const int> nodes,
                                                    const NcclLinks& links, int blocks) {
  const Nodes found = countNodes(nodes);
  const bool oneNode = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return node == nodes.front(); });
  const NcclLink& flat = oneNode ? links.node : links.network;
  Terms all;
  all.positions = static_cast<double>(nodes.size());
  all.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  const bool perRow = problem.op == seqparScanDiag || problem.op == seqparScanMatrix;
  const auto dk = static_cast<double>(problem.dk);
  const double perHead = (perRow ? dk : 1) * (problem.op == seqparScanMatrix ? dk : 1);
  all.map = all.state + static_cast<double>(problem.heads) * perHead * sizeof(float);

  const auto seconds = [&](int algorithm, double k) {
    switch (algorithm) {
      case seqparScanChain:
        return chainSeconds(flat, all.positions, all.state, k);
      case seqparScanLasp1:
        return chainSeconds(flat, all.positions, all.state, 1);
      case seqparScanOneshot:
      case seqparScanLasp2:
        return stepSeconds(flat, (all.positions - 1) * all.map);
      case seqparScanTransposed:
        return transposedSeconds(flat, all);
      case seqparScanHier: {
        if (found.count == 0) return kNever;
        const Terms node{static_cast<double>(found.largest), all.state, all.map};
        const double inside = found.largest == 1 ? 0 : transposedSeconds(links.node, node);
        const double shard = all.state / found.smallest;
        return inside + (found.count == 1 ? 0 : chainSeconds(links.network, found.count, shard, k));
      }
      default:
        return kNever;
    }
  };

  std::vector<seqparScanEstimate_t> out;
  for (int algorithm = seqparScanChain; algorithm <= seqparScanLasp2; ++algorithm) {
    seqparScanEstimate_t best{algorithm, std::max(1, blocks), kNever};
    const bool pipelined = algorithm == seqparScanChain || algorithm == seqparScanHier;
    const std::size_t finest =
        std::clamp<std::size_t>(static_cast<std::size_t>(all.state) / kLeastBlock, 1, kMostBlocks);
    const std::size_t most = pipelined && blocks == 0 ? finest : 1;
    for (std::size_t k = 1; k <= most; k *= 2) {
      const int count = blocks > 0 ? blocks : static_cast<int>(k);
      double us = seconds(algorithm, count) * 1e6;
      if (all.positions == 1 && us < kNever) us = 0;
      if (us < best.modelUs) best = {algorithm, count, us};
    }
    out.push_back(best);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.modelUs < b.modelUs; });
  return out;
}

}  // namespace seqpar
