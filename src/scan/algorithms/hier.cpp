// HIER: TRANSPOSED inside each node, and between the nodes one chain per shard, on as many rails as the smallest node
// has positions.
#include "scan/cost.h"
#include "scan/cut.h"
#include "scan/shards.h"

namespace seqpar::hier {

namespace {

struct Neighborhood {
  Group node;
  int previousFirst = -1;  ///< first position of the previous node; -1 if there is none
  bool last = false;
};

Neighborhood neighborhood(const ScanOrder& order) {
  const auto& nodes = order.nodes;
  const int here = nodes[order.position];
  Neighborhood result{{order.position, order.position + 1}, -1, false};
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

/// The state of the owner's shard before its node, sent from node to node; none at the first node.
std::optional<Fold> chainNodes(ShardScan& scan, Affine& affine, const ScanProblem& problem, const ScanOrder& order,
                               Mailbox& mail, const Neighborhood& place) {
  const MapLayout stateLayout(affine, problem, scan.shard(), MapKind::Absolute);
  const int rail = order.position - place.node.first;
  // Composed while the state is on its way, if that is exact; the map of the first node is a state.
  const bool first = place.previousFirst < 0;
  std::optional<Fold> nodeMap;
  if (!place.last && (first || problem.multipliesFreely())) nodeMap = scan.groupMap();

  std::optional<Fold> x;
  std::optional<Fold> next;
  if (first) {
    next = std::move(nodeMap);
  } else {
    const int from = order.ranks[place.previousFirst + rail];
    const std::byte* const message = mail.receive(from, stateLayout.bytes());
    x.emplace(affine, scan.shard());
    x->start(stateLayout, message);
    if (!place.last) {
      next.emplace(affine, scan.shard());
      next->start(stateLayout, message);
    }
    mail.release(from);
    if (nodeMap) {
      next->then(*nodeMap);
    } else if (next) {
      scan.thenGroup(*next);
    }
  }
  if (next) {
    next->write(stateLayout, mail.acquire(order.ranks[place.node.end + rail], stateLayout.bytes()));
    mail.commit();
  }
  return x;
}

}  // namespace

void run(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  const ScanBlocks parts = scanBlocks(seqparScanHier, affine, problem, order, mail, blocks);
  const size_t rails = static_cast<size_t>(hierRails(order));
  const Neighborhood place = neighborhood(order);
  for (const Block block : parts) {
    ShardScan scan(affine, problem, order, mail, place.node, affine.split(block, rails));
    scan.scatter();
    if (scan.owner()) scan.distribute(chainNodes(scan, affine, problem, order, mail, place));
    scan.take();
  }
}

/// TRANSPOSED inside the nodes around a chain of shards between them.
double hostSeconds(const HostModel& model, double blocks) {
  if (model.nodes.empty()) return kNever;
  const Link& network = model.network;
  const double rails = *std::min_element(model.nodes.begin(), model.nodes.end());
  const double shard = model.node.state / rails / blocks;
  const double hops = static_cast<double>(model.nodes.size()) - 1;
  const double fold = model.ahead ? 0 : model.node.ranks * shard * HostTerms::kFold * model.node.perByte;
  return model.node.shards(blocks) + hops * (network.alpha + network.overhead + shard * network.secondsPerByte + fold) +
         (blocks - 1) * (network.overhead + std::max(shard * network.secondsPerByte, fold));
}

double ncclSeconds(const NcclModel& m, double blocks) {
  if (m.nodes == 0) return kNever;
  const double inside = m.largestNode == 1 ? 0 : m.links.node.transposed(m.largestNode, m.state, m.map);
  return inside + (m.nodes == 1 ? 0 : m.links.network.chain(m.nodes, m.state / m.smallestNode, blocks));
}

}  // namespace seqpar::hier
