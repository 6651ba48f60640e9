// LASP1, a baseline: the whole state is received, then computed, then sent, so that one rank works at a time.
// Source: LASP, arXiv 2404.02882.
#include <algorithm>
#include <cstring>

#include "scan/algorithms.h"
#include "scan/message.h"

namespace seqpar {

void scanLasp1(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail) {
  if (problem.elements() == 0) return;
  const int position = order.position;
  const bool last = position + 1 == order.size();
  const Block whole = affine.split(1).front();
  const size_t bytes = stateBytes(affine, problem, whole);
  // Bytes are cut without regard to what they mean: the state is only used once it is complete.
  const size_t piece = mail.maxMessage();

  Values x;
  MessageBuffer incoming(position > 0 ? bytes : 0);
  if (position > 0) {
    const int from = order.ranks[position - 1];
    for (size_t at = 0; at < bytes; at += piece) {
      const size_t size = std::min(piece, bytes - at);
      std::memcpy(incoming.data() + at, mail.receive(from, size), size);
      mail.release(from);
    }
    x = {incoming.data(), problem.wireType};
  }

  MessageBuffer outgoing(last ? 0 : bytes);
  affine.hop(whole, x, last ? Target() : Target(outgoing.data()));

  for (size_t at = 0; !last && at < bytes; at += piece) {
    const size_t size = std::min(piece, bytes - at);
    copyTo(mail.acquire(order.ranks[position + 1], size), outgoing.data() + at, size);
    mail.commit();
  }
}

}  // namespace seqpar
