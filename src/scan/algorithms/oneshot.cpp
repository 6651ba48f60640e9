// ONESHOT: every position publishes its map once, to all later positions, and combines the maps of all earlier ones.
#include <optional>

#include "scan/cost.h"
#include "scan/cut.h"
#include "scan/fold.h"

namespace seqpar::oneshot {

namespace {

/// Publishes this position's map of `block`. Position 0 computes it and its own outputs in one pass.
void publish(Affine& affine, const MapLayout& layout, Block block, const ScanOrder& order, Mailbox& mail) {
  const Target message = mail.acquire(order.ranks.subspan(order.position + 1), layout.bytes());
  if (order.position == 0) {
    affine.hop(block, {}, layout.state(message));
  } else {
    layout.pack(affine, block, message);
  }
  mail.commit();
}

}  // namespace

void run(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  const int position = order.position;
  const bool last = position + 1 == order.size();
  for (const Block block : scanBlocks(seqparScanOneshot, affine, problem, order, mail, blocks)) {
    const MapLayout absolute(affine, problem, block, MapKind::Absolute);
    // Not used between two positions, where computing it would take a large part of a small block's time.
    std::optional<MapLayout> relative;
    if (order.size() > 2) relative.emplace(affine, problem, block);
    // Before the hop: an output may alias the state.
    if (!last) publish(affine, position == 0 ? absolute : *relative, block, order, mail);
    if (position == 0) {
      if (last) affine.hop(block, {}, nullptr);
      continue;
    }

    const std::byte* const first = mail.receive(order.ranks[0], absolute.bytes());
    if (position == 1) {
      affine.hop(block, absolute.state(first), nullptr);
      mail.release(order.ranks[0]);
      continue;
    }
    Fold fold(affine, block);
    fold.start(absolute, first);
    mail.release(order.ranks[0]);
    for (const int rank : order.ranks.subspan(1, position - 1)) {
      fold.then(*relative, mail.receive(rank, relative->bytes()));
      mail.release(rank);
    }
    affine.hop(block, fold.state(), nullptr);
  }
}

double hostSeconds(const HostModel& model, double blocks) {
  const HostTerms& t = model.flat;
  return t.wave + blocks * (t.ranks - 1) * t.overhead + t.element * HostTerms::kPack * t.perByte +
         t.folds(t.ranks - 1) + t.state * HostTerms::kFinish * t.perByte;
}

double peerSeconds(const PeerModel& m) {
  return m.alpha + PeerModel::kFold + m.hops() * (m.map * m.perByte + PeerModel::kPeer) +
         m.moreRows * PeerModel::kStep + (m.oneRow ? 0 : PeerModel::kGeneral);
}

double matrixSeconds(const MatrixModel& m) {
  return m.alpha + m.hops() * m.map + m.ranks * m.hop / MatrixModel::kMapRate;
}

double ncclSeconds(const NcclModel& m, double) {
  return m.flat.step((m.positions - 1) * m.map);
}

}  // namespace seqpar::oneshot
