// LASP1, a baseline: LASP (arXiv 2404.02882), the ring of states of its Algorithms 2 and 3: the whole state is
// received, then computed, then sent, so only one rank works at a time.
#include <cstring>

#include "scan/cost.h"
#include "scan/message.h"

namespace seqpar::lasp1 {

void run(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t) {
  if (problem.elements() == 0) return;
  const int position = order.position;
  const bool last = position + 1 == order.size();
  const Block whole = affine.split(1).front();
  const size_t bytes = stateBytes(affine, problem, whole);
  // Bytes are divided without regard to their meaning: the state is only used once it is complete.
  const size_t chunk = mail.maxMessage();

  Values x;
  MessageBuffer incoming(position > 0 ? bytes : 0);
  if (position > 0) {
    const int from = order.ranks[position - 1];
    for (size_t at = 0; at < bytes; at += chunk) {
      const size_t size = std::min(chunk, bytes - at);
      std::memcpy(incoming.data() + at, mail.receive(from, size), size);
      mail.release(from);
    }
    x = {incoming.data(), problem.wireType};
  }

  MessageBuffer outgoing(last ? 0 : bytes);
  affine.hop(whole, x, last ? Target() : Target(outgoing.data()));

  for (size_t at = 0; !last && at < bytes; at += chunk) {
    const size_t size = std::min(chunk, bytes - at);
    copyTo(mail.acquire(order.ranks[position + 1], size), outgoing.data() + at, size);
    mail.commit();
  }
}

/// Blocking: whole states are received, then combined, then sent.
double hostSeconds(const HostModel& model, double) {
  const HostTerms& t = model.flat;
  const double work = HostTerms::kCopy + HostTerms::kFinish + HostTerms::kPack;
  return (t.ranks - 1) * (t.alpha + t.state * work * t.alone) + t.ranks * t.overhead;
}

double peerSeconds(const PeerModel& m) {
  const double chunk = std::min(m.state, PeerModel::kChunkBytes * m.channels);
  return PeerModel::kGeneral + m.hops() * (m.alpha + PeerModel::kStep / 2 + chunk * m.perByte) + m.stream;
}

double matrixSeconds(const MatrixModel& m) {
  const double through = m.panels * m.panel + m.hops() * (m.panel + m.alpha);
  return std::max(through + m.hops() * (MatrixModel::kLasp1Panels - 1) * m.panel, m.state + m.hops() * m.alpha);
}

double ncclSeconds(const NcclModel& m, double) {
  return m.flat.chain(m.positions, m.state, 1);
}

}  // namespace seqpar::lasp1
