// CHAIN: a pipeline through the positions. Each block is received from the predecessor, hopped, and written straight
// into the message for the successor. Source: ZeCO, arXiv 2507.01004, All-Scan.
#include "scan/algorithms.h"
#include "scan/cut.h"
#include "scan/message.h"

namespace seqpar {

void scanChain(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks) {
  const int position = order.position;
  const bool last = position + 1 == order.size();
  for (const Block block : cutScan(seqparScanChain, affine, problem, order, mail, blocks)) {
    const size_t bytes = stateBytes(affine, problem, block);
    Values x;
    if (position > 0) x = {mail.receive(order.ranks[position - 1], bytes), problem.wireType};
    const Target next = last ? Target() : mail.acquire(order.ranks[position + 1], bytes);
    affine.hop(block, x, next);
    if (!last) mail.commit();
    if (position > 0) mail.release(order.ranks[position - 1]);
  }
}

}  // namespace seqpar
