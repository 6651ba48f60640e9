// DOUBLING: an exclusive scan in a logarithmic number of rounds, each of which prepends what a position `skip` before
// this one knows. Source: Traeff, "exclusive scan" with 123-doubling, arXiv 2507.04785.
#include "scan/doubling.h"

#include "scan/algorithms.h"
#include "scan/cut.h"
#include "scan/fold.h"

namespace seqpar {

namespace {

/// One block's exclusive scan, round by round.
class Doubling {
 public:
  Doubling(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, Block block)
      : affine_(affine),
        order_(order),
        mail_(mail),
        block_(block),
        relative_(affine, problem, block),
        absolute_(affine, problem, block, MapKind::Absolute),
        before_(affine, block),
        scratch_(affine, block) {}

  void send(DoublingRound round) {
    const int position = order_.position;
    if (position + round.skip >= order_.size() || !sends(position, round)) return;
    const MapLayout& layout = layoutFrom(position, round);
    const int to = order_.ranks[position + round.skip];
    if (!round.own) {
      before_.write(layout, mail_.acquire(to, layout.bytes()));
    } else if (!known_) {
      layout.pack(affine_, block_, mail_.acquire(to, layout.bytes()));
    } else {
      MessageBuffer own(relative_.bytes());
      relative_.pack(affine_, block_, own.data());
      scratch_.start(before_);
      scratch_.then(relative_, own.data());
      scratch_.write(layout, mail_.acquire(to, layout.bytes()));
    }
    mail_.commit();
  }

  void receive(DoublingRound round) {
    const int from = order_.position - round.skip;
    if (from < 0 || !sends(from, round)) return;
    const MapLayout& layout = layoutFrom(from, round);
    const std::byte* const message = mail_.receive(order_.ranks[from], layout.bytes());
    if (known_) {
      scratch_.start(layout, message);
      scratch_.then(before_);
      std::swap(scratch_, before_);
    } else {
      before_.start(layout, message);
      known_ = true;
    }
    mail_.release(order_.ranks[from]);
  }

  void hop() { affine_.hop(block_, known_ ? before_.state() : Values{}, nullptr); }

 private:
  /// Nothing lies in front of position 0.
  static bool sends(int position, DoublingRound round) { return round.own || position > 0; }

  const MapLayout& layoutFrom(int position, DoublingRound round) const {
    const int firstCovered = position - round.skip + (round.own ? 1 : 0);
    return firstCovered <= 0 ? absolute_ : relative_;
  }

  Affine& affine_;
  const ScanOrder& order_;
  Mailbox& mail_;
  Block block_;
  MapLayout relative_, absolute_;
  Fold before_;   ///< the positions before this one, as far as known
  Fold scratch_;  ///< what before_ is about to become, or what is sent
  bool known_ = false;
};

}  // namespace

std::vector<DoublingRound> doublingRounds(int size) {
  std::vector<DoublingRound> rounds;
  if (size > 1) rounds.push_back({1, true});
  if (size > 2) rounds.push_back({2, true});
  for (int skip = 3; skip < size - 1; skip *= 2) rounds.push_back({skip, false});
  return rounds;
}

void scanDoubling(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  std::vector<Doubling> pieces;
  for (const Block block : cutScan(seqparScanDoubling, affine, problem, order, mail, blocks)) {
    pieces.emplace_back(affine, problem, order, mail, block);
  }
  for (const DoublingRound round : doublingRounds(order.size())) {
    for (Doubling& piece : pieces) {
      piece.send(round);
      piece.receive(round);
    }
  }
  for (Doubling& piece : pieces) piece.hop();
}

}  // namespace seqpar
