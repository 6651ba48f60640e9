// HIER: TRANSPOSED inside each node, and between the nodes a chain for each shard, on as many rails as the smallest
// node has positions.
#include "scan/algorithms.h"
#include "scan/cut.h"
#include "scan/shards.h"

namespace seqpar {

namespace {

struct Neighbourhood {
  Group node;
  int previousFirst = -1;  ///< first position of the node before this one; -1 if there is none
  bool last = false;
};

Neighbourhood neighbourhood(const ScanOrder& order) {
  const auto& nodes = order.nodes;
  const int here = nodes[order.position];
  Neighbourhood result{{order.position, order.position + 1}, -1, false};
  Group& node = result.node;
  while (node.first > 0 && nodes[node.first - 1] == here) --node.first;
  while (node.end < order.size() && nodes[node.end] == here) ++node.end;
  result.last = node.end == order.size();
  if (node.first > 0) {
    int before = node.first - 1;
    while (before > 0 && nodes[before - 1] == nodes[before]) --before;
    result.previousFirst = before;
  }
  return result;
}

/// The state of the owner's shard in front of its node, handed from node to node; none at the first node.
std::optional<Fold> chainNodes(ShardScan& scan, Affine& affine, const ScanProblem& problem, const ScanOrder& order,
                               Mailbox& mail, const Neighbourhood& place) {
  const MapLayout stateLayout(affine, problem, scan.shard(), MapKind::Absolute);
  const int rail = order.position - place.node.first;
  std::optional<Fold> nodeMap;
  if (!place.last) nodeMap = scan.groupMap();

  std::optional<Fold> x;
  std::optional<Fold> next;
  if (place.previousFirst < 0) {
    next = std::move(nodeMap);
  } else {
    const int from = order.ranks[place.previousFirst + rail];
    const std::byte* const message = mail.receive(from, stateLayout.bytes());
    x.emplace(affine, scan.shard());
    x->start(stateLayout, message);
    if (nodeMap) {
      next.emplace(affine, scan.shard());
      next->start(stateLayout, message);
      next->then(*nodeMap);
    }
    mail.release(from);
  }
  if (next) {
    next->write(stateLayout, mail.acquire(order.ranks[place.node.end + rail], stateLayout.bytes()));
    mail.commit();
  }
  return x;
}

}  // namespace

void scanHier(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  const std::vector<Block> pieces = cutScan(seqparScanHier, affine, problem, order, mail, blocks);
  const size_t rails = static_cast<size_t>(hierRails(order));
  const Neighbourhood place = neighbourhood(order);
  for (const Block block : pieces) {
    ShardScan scan(affine, problem, order, mail, place.node, affine.split(block, rails));
    scan.scatter();
    if (scan.owner()) scan.distribute(chainNodes(scan, affine, problem, order, mail, place));
    scan.take();
  }
}

}  // namespace seqpar
