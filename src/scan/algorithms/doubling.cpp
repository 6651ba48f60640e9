// DOUBLING: 123-doubling (Traeff, "exclusive scan", arXiv 2507.04785): a logarithmic number of rounds. In each round a
// position prepends the map known to the position `skip` before it.
#include "kernels/scan/doubling_rounds.h"
#include "scan/cost.h"
#include "scan/cut.h"
#include "scan/fold.h"

namespace seqpar::doubling {

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
    if (!round.sends(position, order_.size())) return;
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
    if (!round.sends(from, order_.size())) return;
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
  const MapLayout& layoutFrom(int position, DoublingRound round) const {
    return round.isAbsolute(position) ? absolute_ : relative_;
  }

  Affine& affine_;
  const ScanOrder& order_;
  Mailbox& mail_;
  Block block_;
  MapLayout relative_, absolute_;
  Fold before_;   ///< the positions before this one, as far as known
  Fold scratch_;  ///< the next value of before_, or the map that is sent
  bool known_ = false;
};

}  // namespace

void run(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  std::vector<Doubling> parts;
  for (const Block block : scanBlocks(seqparScanDoubling, affine, problem, order, mail, blocks)) {
    parts.emplace_back(affine, problem, order, mail, block);
  }
  for (int number = 0; hasDoublingRound(number, order.size()); ++number) {
    for (Doubling& piece : parts) {
      piece.send(doublingRound(number));
      piece.receive(doublingRound(number));
    }
  }
  for (Doubling& piece : parts) piece.hop();
}

double hostSeconds(const HostModel& model, double blocks) {
  constexpr double kScratch = 0.5e-6;  // to set up the composed maps
  const HostTerms& t = model.flat;
  const double round = t.wave + blocks * t.overhead + t.element * (HostTerms::kPack + HostTerms::kPrepend) * t.perByte;
  return kScratch + doublingRounds(static_cast<int>(t.ranks)) * round + t.state * HostTerms::kFinish * t.perByte;
}

double peerSeconds(const PeerModel& m) {
  const double rounds = doublingRounds(static_cast<int>(m.ranks));
  return PeerModel::kGeneral + rounds * (m.alpha + PeerModel::kPeer + m.map * m.perByte) +
         m.moreRows * (PeerModel::kStep + rounds * m.alpha);
}

double matrixSeconds(const MatrixModel& m) {
  return doublingRounds(static_cast<int>(m.ranks)) * (m.alpha + m.map + (m.hop + m.compose) / MatrixModel::kMapRate);
}

}  // namespace seqpar::doubling
