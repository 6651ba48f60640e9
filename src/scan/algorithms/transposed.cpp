// TRANSPOSED: every position sends each shard of its map to the shard's owner. Owners combine their shard of all
// positions in order, and send every position its x of the shard.
#include "scan/cost.h"
#include "scan/cut.h"
#include "scan/shards.h"

namespace seqpar::transposed {

void run(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  for (const Block block : scanBlocks(seqparScanTransposed, affine, problem, order, mail, blocks)) {
    ShardScan scan(affine, problem, order, mail, {0, order.size()}, affine.split(block, order.ranks.size()));
    scan.scatter();
    if (scan.owner()) scan.distribute({});
    scan.take();
  }
}

double hostSeconds(const HostModel& model, double blocks) {
  return model.flat.shards(blocks);
}

double peerSeconds(const PeerModel& m) {
  const double shards = m.oneRow ? m.state / (m.threads * PeerModel::kStreamRate)
                                 : PeerModel::kGeneral + m.state / (m.threads * PeerModel::kShardRate);
  return 2 * m.alpha + PeerModel::kFold + PeerModel::kShard +
         m.hops() * ((m.map + m.state) / m.ranks * m.perByte + PeerModel::kPeer) + shards;
}

double matrixSeconds(const MatrixModel& m) {
  return 2 * m.alpha + m.hops() / m.ranks * (m.map + m.state) + 2 * m.hop / MatrixModel::kMapRate;
}

double ncclSeconds(const NcclModel& m, double) {
  return m.flat.transposed(m.positions, m.state, m.map);
}

}  // namespace seqpar::transposed
