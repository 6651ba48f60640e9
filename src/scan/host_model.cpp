#include "scan/host_model.h"

#include <map>

#include "base/convert.h"
#include "scan/cost.h"
#include "scan/in_place.h"

namespace seqpar {
namespace {

constexpr size_t kLeastBlock = size_t{16} << 10;  // smaller blocks cost more than the model's overhead, which is that
                                                  // of empty messages
constexpr size_t kMostBlocks = 4096;

/// Sizes of the runs of positions that share a node; empty if a node's positions are not neighbors.
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

/// The steps of a chain that follow each other. Where ranks share processors, most messages have arrived when their
/// receiver runs, and a processor runs each of its ranks once.
double inSequence(double steps, double contention) {
  return std::min(steps, std::max(contention, steps / contention));
}

HostTerms makeTerms(const ScanProblem& problem, const LinkModel& links, bool withinNode, double ranks) {
  const Link& link = withinNode ? links.node : links.network;
  HostTerms t;
  t.ranks = ranks;
  t.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  t.element = t.state + static_cast<double>(problem.heads) * transitionOfHead(problem) * sizeof(float);
  t.alpha = link.alpha;
  t.overhead = link.overhead;
  t.perByte = link.secondsPerByte;
  t.alone = link.secondsPerByte / links.contention;
  t.wave = link.alpha * links.contention;
  const double sharing = withinNode ? links.contention : 1;
  t.hops = inSequence(ranks - 1, sharing);
  t.stages = inSequence(ranks, sharing);
  t.fetch = withinNode ? link.alpha : 0;
  return t;
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateScan(const ScanProblem& problem, const ScanSetting& setting, int blocks) {
  const auto& links = setting.links;
  const auto runs = nodeRuns(setting.nodes);
  const double perNode = runs.empty() ? 1 : *std::max_element(runs.begin(), runs.end());
  HostModel model;
  model.flat = makeTerms(problem, links, runs.size() == 1, setting.positions);
  model.node = makeTerms(problem, links, true, perNode);
  model.network = links.network;
  model.nodes = runs;
  model.ahead = problem.multipliesFreely();
  model.inPlace = offersInPlace(problem, setting.positions, setting.access);
  const size_t most = std::clamp<size_t>(static_cast<size_t>(model.flat.state) / kLeastBlock, 1, kMostBlocks);
  return estimateAlgorithms(
      {blocks, most},
      [&](const ScanAlgorithm& row) {
        return row.host.run != nullptr &&
               scanFits(row.traffic, problem, setting.positions, setting.maxMessage, setting.window);
      },
      [&](const ScanAlgorithm& row, double count) {
        return setting.positions == 1 ? 0 : row.host.seconds(model, count);
      });
}

}  // namespace seqpar
