// ONESHOT: every position publishes its map once, to all later positions, and every position combines what precedes it.
#include "scan/algorithms.h"
#include "scan/cut.h"
#include "scan/fold.h"

namespace seqpar {

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

void scanOneshot(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  const int position = order.position;
  const bool last = position + 1 == order.size();
  for (const Block block : cutScan(seqparScanOneshot, affine, problem, order, mail, blocks)) {
    const MapLayout relative(affine, problem, block);
    const MapLayout absolute(affine, problem, block, MapKind::Absolute);
    // Before the hop: an output may be the same memory as the state.
    if (!last) publish(affine, position == 0 ? absolute : relative, block, order, mail);
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
      fold.then(relative, mail.receive(rank, relative.bytes()));
      mail.release(rank);
    }
    affine.hop(block, fold.state(), nullptr);
  }
}

}  // namespace seqpar
