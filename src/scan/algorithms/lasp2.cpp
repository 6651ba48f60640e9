// LASP2, a baseline: LASP-2 (arXiv 2502.07563), the all-gather of its Algorithms 2 and 4: every rank gathers all maps
// before it combines them.
#include <cstring>
#include <vector>

#include "scan/cost.h"
#include "scan/cut.h"
#include "scan/fold.h"

namespace seqpar::lasp2 {

namespace {

struct GatheredBlock {
  Block block;
  MapLayout layout;
  std::vector<MessageBuffer> maps;  ///< one per position
};

/// All maps of `block`, including those of positions that this one does not need: the baseline is an all-gather.
GatheredBlock gather(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, Block block) {
  GatheredBlock gathered{block, MapLayout(affine, problem, block), {}};
  const MapLayout& layout = gathered.layout;
  for (int p = 0; p < order.size(); ++p) gathered.maps.emplace_back(layout.bytes());

  MessageBuffer& own = gathered.maps[order.position];
  layout.pack(affine, block, own.data());
  std::vector<int> others(order.ranks.begin(), order.ranks.end());
  others.erase(others.begin() + order.position);
  if (others.empty()) return gathered;
  copyTo(mail.acquire(others, layout.bytes()), own.data(), layout.bytes());
  mail.commit();
  for (int p = 0; p < order.size(); ++p) {
    if (p == order.position) continue;
    std::memcpy(gathered.maps[p].data(), mail.receive(order.ranks[p], layout.bytes()), layout.bytes());
    mail.release(order.ranks[p]);
  }
  return gathered;
}

}  // namespace

void run(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  std::vector<GatheredBlock> all;
  for (const Block block : scanBlocks(seqparScanLasp2, affine, problem, order, mail, blocks)) {
    all.push_back(gather(affine, problem, order, mail, block));
  }
  for (const GatheredBlock& gathered : all) {
    if (order.position == 0) {
      affine.hop(gathered.block, {}, nullptr);
      continue;
    }
    Fold fold(affine, gathered.block);
    fold.start(nullptr, gathered.layout.state(gathered.maps[0].data()));
    for (int p = 1; p < order.position; ++p) fold.then(gathered.layout, gathered.maps[p].data());
    affine.hop(gathered.block, fold.state(), nullptr);
  }
}

/// Every rank copies all elements before it combines the ones that it needs.
double hostSeconds(const HostModel& model, double) {
  const HostTerms& t = model.flat;
  return t.wave + (t.ranks - 1) * (t.overhead + t.element * HostTerms::kCopy * t.perByte) +
         t.element * HostTerms::kPack * t.perByte + t.folds(t.ranks - 1) + t.state * HostTerms::kFinish * t.perByte;
}

double peerSeconds(const PeerModel& m) {
  return PeerModel::kGeneral + m.alpha + m.hops() * (m.map * m.perByte + 2 * PeerModel::kPeer) +
         m.moreRows * 1.5 * PeerModel::kStep;
}

double matrixSeconds(const MatrixModel& m) {
  return m.alpha + m.hops() * m.map + m.ranks * m.hop / MatrixModel::kMapRate;
}

double ncclSeconds(const NcclModel& m, double) {
  return m.flat.step((m.positions - 1) * m.map);
}

}  // namespace seqpar::lasp2
