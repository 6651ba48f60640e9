#include "scan/nccl_model.h"

#include <map>

#include "base/convert.h"
#include "base/error.h"
#include "scan/cost.h"
#include "scan/cut.h"

namespace seqpar {
namespace {

constexpr std::size_t kLeastBlock = std::size_t{64} << 10;  // bytes; smaller blocks are dominated by latency
constexpr std::size_t kMostBlocks = 64;

void countNodes(std::span<const int> nodes, NcclModel& model) {
  std::map<int, int> sizes;
  for (const int node : nodes) ++sizes[node];
  std::vector<int> order(nodes.size());
  try {
    model.smallestNode = hierRails({order, 0, nodes});
  } catch (const Error&) {
    return;
  }
  model.nodes = static_cast<int>(sizes.size());
  for (const auto& [node, size] : sizes) model.largestNode = std::max(model.largestNode, size);
}

}  // namespace

std::vector<seqparScanEstimate_t> ncclScanEstimates(const ScanProblem& problem, std::span<const int> nodes,
                                                    const NcclLinks& links, int blocks) {
  NcclModel model;
  model.positions = static_cast<double>(nodes.size());
  model.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  model.map = model.state + static_cast<double>(problem.heads) * transitionOfHead(problem) * sizeof(float);
  const bool oneNode = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return node == nodes.front(); });
  model.flat = oneNode ? links.node : links.network;
  model.links = links;
  countNodes(nodes, model);
  const size_t most = std::clamp<std::size_t>(static_cast<std::size_t>(model.state) / kLeastBlock, 1, kMostBlocks);
  return estimateAlgorithms(
      {blocks, most}, [](const ScanAlgorithm& row) { return row.nccl.seconds != nullptr; },
      [&](const ScanAlgorithm& row, double count) {
        const double seconds = row.nccl.seconds(model, count);
        return model.positions == 1 && seconds < kNever ? 0 : seconds;
      });
}

}  // namespace seqpar
