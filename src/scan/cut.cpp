#include "scan/cut.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "scan/message.h"
#include "scan/registry.h"

namespace seqpar {

namespace {

/// An algorithm's use of the mailbox for one block, on the rank with the highest use.
struct Load {
  size_t message = 0;    ///< the largest message
  size_t published = 0;  ///< all messages of one rank
};

/// Limits for one message and for all messages of a rank.
struct Limits {
  size_t maxMessage;
  size_t window;

  /// Ratio of a load to the limits: the load fits if the ratio is at most 1.
  double excess(const Load& need) const {
    return std::max(static_cast<double>(need.message) / static_cast<double>(maxMessage),
                    static_cast<double>(need.published) / (static_cast<double>(window) / 2));
  }
};

/// The space of a message in the window.
size_t inWindow(size_t bytes) {
  return (bytes + MessageBuffer::kAlignment - 1) / MessageBuffer::kAlignment * MessageBuffer::kAlignment;
}

bool sendsShards(ScanTraffic traffic) {
  return traffic == ScanTraffic::Shards || traffic == ScanTraffic::NodeShards;
}

struct Cutter {
  ScanTraffic traffic;
  const Affine& affine;
  const ScanProblem& problem;
  size_t positions;
  size_t owners;  ///< positions among which a block's shards are divided
  Limits limits;

  size_t mapBytes(Block block) const { return MapLayout(affine, problem, block).bytes(); }

  /// Every position sends the map of each shard to the shard's owner. The owner sends a state to each other position
  /// and, in HIER, to the next node.
  Load shardLoad(Block block) const {
    Load load;
    size_t largestState = 0;
    for (const Block shard : affine.split(block, owners)) {
      load.message = std::max(load.message, mapBytes(shard));
      load.published += inWindow(mapBytes(shard));
      largestState = std::max(largestState, stateBytes(affine, problem, shard));
    }
    load.published += positions * inWindow(largestState);
    return load;
  }

  Load load(Block block) const {
    if (sendsShards(traffic)) return shardLoad(block);
    const size_t bytes = traffic == ScanTraffic::States ? stateBytes(affine, problem, block) : mapBytes(block);
    return {bytes, inWindow(bytes)};
  }

  /// The worst excess of `blocks`.
  double excess(const std::vector<Block>& blocks) const {
    double worst = 0;
    for (const Block block : blocks) worst = std::max(worst, limits.excess(load(block)));
    return worst;
  }

  /// The coarsest blocks found that fit, at least `parts` if the state allows it; none if even the finest do not fit.
  std::vector<Block> cut(size_t parts) const {
    std::vector<Block> blocks = affine.split(parts);
    double beyond = excess(blocks);
    while (beyond > 1) {
      if (parts >= problem.elements()) return {};
      // Dividing n times finer shrinks a block by n at most, so this step skips no much coarser division.
      parts = std::max(static_cast<size_t>(std::ceil(static_cast<double>(parts) * beyond)), parts + parts / 8 + 1);
      parts = std::min(parts, problem.elements());
      blocks = affine.split(parts);
      beyond = excess(blocks);
    }
    return blocks;
  }
};

bool sendsStatesOnly(const ScanAlgorithm& row) {
  return row.traffic == ScanTraffic::Bytes || row.traffic == ScanTraffic::States;
}

}  // namespace

int hierRails(const ScanOrder& order) {
  std::set<int> seen;
  int rails = order.size();
  for (int first = 0, end = 0; first < order.size(); first = end) {
    while (end < order.size() && order.nodes[end] == order.nodes[first]) ++end;
    if (!seen.insert(order.nodes[first]).second) {
      fail(seqparInvalidUsage, "All-Scan with the algorithm hier: node ", order.nodes[first],
           " has ranks at positions that are not ", "neighbors (position ", first,
           " follows another node's); expected each node's ranks side by side");
    }
    rails = std::min(rails, end - first);
  }
  return rails;
}

std::vector<Block> cutScan(seqparScanAlgorithm_t algorithm, const Affine& affine, const ScanProblem& problem,
                           const ScanOrder& order, const Mailbox& mail, size_t blocks) {
  const ScanAlgorithm& row = scanAlgorithm(algorithm);
  const int owners = row.traffic == ScanTraffic::NodeShards ? hierRails(order) : order.size();
  if (problem.elements() == 0) return {};
  const Cutter cutter{row.traffic,
                      affine,
                      problem,
                      static_cast<size_t>(order.size()),
                      static_cast<size_t>(owners),
                      {mail.maxMessage(), mail.window()}};
  std::vector<Block> cut = cutter.cut(std::max<size_t>(blocks, 1));
  if (cut.empty()) {
    fail(seqparInvalidUsage, "All-Scan with the algorithm ", row.name, ": dk = ", problem.dk,
         " is too large, even cut as finely as possible, for messages of at most ", mail.maxMessage(),
         " bytes and a window of ", mail.window(), " bytes; expected ", scanAlgorithmsThat(sendsStatesOnly));
  }
  return cut;
}

bool scanFits(ScanTraffic traffic, const ScanProblem& problem, int positions, size_t maxMessage, size_t window) {
  if (problem.elements() == 0 || traffic == ScanTraffic::Bytes) return true;
  // If any blocks fit, the finest ones do, for any number of them. They cannot be divided into shards.
  const BlockSize finest = finestBlock(problem);
  const size_t state = MapLayout(finest, problem.wireType, MapKind::Absolute).bytes();
  const size_t message = traffic == ScanTraffic::States ? state : MapLayout(finest, problem.wireType).bytes();
  const size_t published =
      inWindow(message) + (sendsShards(traffic) ? static_cast<size_t>(positions) * inWindow(state) : 0);
  return Limits{maxMessage, window}.excess({message, published}) <= 1;
}

}  // namespace seqpar
