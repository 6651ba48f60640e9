// CHAIN: ZeCO (arXiv 2507.01004), the All-Scan of its Algorithms 1 and 3: a pipeline through the positions. Each block
// is received from the predecessor, hopped, and written directly into the message for the successor.
#include "scan/cost.h"
#include "scan/cut.h"
#include "scan/in_place.h"
#include "scan/message.h"

namespace seqpar::chain {

void run(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  if (offersInPlace(problem, order, mail) && scanInPlace(affine, problem, order, mail)) return;
  const int position = order.position;
  const bool last = position + 1 == order.size();
  for (const Block block : scanBlocks(seqparScanChain, affine, problem, order, mail, blocks)) {
    const size_t bytes = stateBytes(affine, problem, block);
    Values x;
    if (position > 0) x = {mail.receive(order.ranks[position - 1], bytes), problem.wireType};
    const Target next = last ? Target() : mail.acquire(order.ranks[position + 1], bytes);
    affine.hop(block, x, next);
    if (!last) mail.commit();
    if (position > 0) mail.release(order.ranks[position - 1]);
  }
}

/// ZeCO's pipeline, with latency and overhead, which the paper's formula omits. On a host every rank's own work on a
/// block is a stage, so P stages fill, followed by K-1 blocks.
double hostSeconds(const HostModel& model, double blocks) {
  const HostTerms& t = model.flat;
  const double block = t.state / blocks;
  const double byMessages =
      t.hops * t.alpha + t.stages * (t.overhead + block * t.alone) + (blocks - 1) * (t.overhead + block * t.perByte);
  // A fraction of it, so the number of blocks also suits messages: position 0's arguments decide between the two.
  return model.inPlace ? HostTerms::kInPlace * byMessages : byMessages;
}

double peerSeconds(const PeerModel& m) {
  return m.hops() * (m.alpha + PeerModel::kHop) + m.stream + (m.fast ? 0 : PeerModel::kGeneral / 2);
}

double matrixSeconds(const MatrixModel& m) {
  const double through = m.panels * m.chainPanel + m.hops() * (m.chainPanel + m.alpha);
  return std::max(through, m.state + m.hops() * m.alpha);
}

double ncclSeconds(const NcclModel& m, double blocks) {
  return m.flat.chain(m.positions, m.state, blocks);
}

}  // namespace seqpar::chain
