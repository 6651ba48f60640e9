#include "ring/send_recv.h"

#include <algorithm>

#include "seqpar/seqpar.h"

namespace seqpar {
namespace {

/// Small enough that the copy in and the copy out of neighbouring pieces overlap and stay in cache.
constexpr size_t kPiece = size_t{64} << 10;
/// A rank sends this many pieces before it waits for its first: slack between neighbours, well inside the mailbox's
/// window.
constexpr size_t kLead = 2;

size_t pieces(size_t bytes) {
  return bytes == 0 ? 1 : (bytes + kPiece - 1) / kPiece;
}

}  // namespace

void sendReceive(Mailbox& mail, std::span<const std::byte> send, int sendPeer, std::span<std::byte> receive,
                 int receivePeer) {
  const size_t toSend = sendPeer == SEQPAR_NO_PEER ? 0 : pieces(send.size());
  const size_t toReceive = receivePeer == SEQPAR_NO_PEER ? 0 : pieces(receive.size());
  // All ranks take the same steps, publish before they receive, and never lead by more than the window: no ring of them
  // can lock.
  for (size_t step = 0; step < std::max(toSend, toReceive + kLead); ++step) {
    if (step < toSend) {
      const auto piece = send.subspan(step * kPiece, std::min(kPiece, send.size() - step * kPiece));
      copyTo(mail.acquire(sendPeer, piece.size()), piece.data(), piece.size());
      mail.commit();
    }
    if (step >= kLead && step - kLead < toReceive) {
      const size_t begin = (step - kLead) * kPiece;
      const auto piece = receive.subspan(begin, std::min(kPiece, receive.size() - begin));
      const auto* in = mail.receive(receivePeer, piece.size());
      copyFrom(piece.data(), in, piece.size());
      mail.release(receivePeer);
    }
  }
}

}  // namespace seqpar
