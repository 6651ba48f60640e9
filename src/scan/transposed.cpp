// TRANSPOSED: every position sends each shard of its map to the shard's owner, owners combine their shard of all
// positions in order, and send every position its x of the shard.
#include "scan/algorithms.h"
#include "scan/cut.h"
#include "scan/shards.h"

namespace seqpar {

void scanTransposed(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  for (const Block block : cutScan(seqparScanTransposed, affine, problem, order, mail, blocks)) {
    ShardScan scan(affine, problem, order, mail, {0, order.size()}, affine.split(block, order.ranks.size()));
    scan.scatter();
    if (scan.owner()) scan.distribute({});
    scan.take();
  }
}

}  // namespace seqpar
