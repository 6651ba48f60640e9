#include "ring/send_recv.h"

#include <algorithm>
#include <cstring>

#include "seqpar/seqpar.h"

namespace seqpar {
namespace {

/// The least and the largest piece: fewer bytes do not pay for a message, more delay the copy out, which follows the
/// copy in.
constexpr size_t kLeastPiece = size_t{8} << 10;
constexpr size_t kMostPiece = size_t{64} << 10;
/// Pieces that a buffer between these bounds is cut into.
constexpr size_t kPieces = 4;
/// A rank sends this many pieces before it waits for its first: slack between neighbours, well inside the mailbox's
/// window.
constexpr size_t kLead = 2;
/// From here on one copy by one processor is faster than two by two, if the buffers lie on large pages, and as fast if
/// not.
constexpr size_t kInPlace = size_t{2} << 20;

/// One direction of an exchange, cut into pieces; both ends cut alike.
class Cut {
 public:
  explicit Cut(size_t bytes)
      : bytes_(bytes), piece_(std::clamp((bytes / kPieces + kLine - 1) / kLine * kLine, kLeastPiece, kMostPiece)) {}

  size_t count() const { return bytes_ == 0 ? 1 : (bytes_ + piece_ - 1) / piece_; }
  template <typename Byte>
  std::span<Byte> of(std::span<Byte> all, size_t index) const {
    return all.subspan(index * piece_, std::min(piece_, bytes_ - index * piece_));
  }

 private:
  static constexpr size_t kLine = 64;
  size_t bytes_, piece_;
};

void sendSmall(Mailbox& mail, int to, std::span<const std::byte> bytes) {
  copyTo(mail.acquire(to, bytes.size()), bytes.data(), bytes.size());
  mail.commit();
}

void receiveEmpty(Mailbox& mail, int from) {
  mail.receive(from, 0);
  mail.release(from);
}

/// Both directions in pieces through messages; nothing of a direction without a peer.
void exchangePieces(Mailbox& mail, std::span<const std::byte> send, int sendPeer, std::span<std::byte> receive,
                    int receivePeer) {
  const Cut out(send.size());
  const Cut in(receive.size());
  const size_t toSend = sendPeer == SEQPAR_NO_PEER ? 0 : out.count();
  const size_t toReceive = receivePeer == SEQPAR_NO_PEER ? 0 : in.count();
  // All ranks take the same steps, publish before they receive, and never lead by more than the window: no ring of them
  // can lock.
  for (size_t step = 0; step < std::max(toSend, toReceive + kLead); ++step) {
    if (step < toSend) sendSmall(mail, sendPeer, out.of(send, step));
    if (step >= kLead && step - kLead < toReceive) {
      const auto piece = in.of(receive, step - kLead);
      copyFrom(piece.data(), mail.receive(receivePeer, piece.size()), piece.size());
      mail.release(receivePeer);
    }
  }
}

void readOffer(Mailbox& mail, int from, std::span<std::byte> into) {
  uint64_t address = 0;
  std::memcpy(&address, mail.receive(from, sizeof(address)), sizeof(address));
  mail.release(from);
  mail.read(from, address, into);
}

}  // namespace

void sendReceive(Mailbox& mail, std::span<const std::byte> send, int sendPeer, std::span<std::byte> receive,
                 int receivePeer) {
  const bool sends = sendPeer != SEQPAR_NO_PEER;
  const bool receives = receivePeer != SEQPAR_NO_PEER;
  const bool offers = sends && send.size() >= kInPlace && mail.readable(sendPeer);
  const bool reads = receives && receive.size() >= kInPlace && mail.readable(receivePeer);

  // A large buffer: its address goes to the receiver, which reads it and says so. The sender's answer, that it was
  // still waiting, is what makes the bytes good: one that had given up might have changed them.
  if (offers) {
    const auto address = reinterpret_cast<uint64_t>(send.data());
    sendSmall(mail, sendPeer, std::as_bytes(std::span(&address, 1)));
  }
  exchangePieces(mail, send, offers ? SEQPAR_NO_PEER : sendPeer, receive, reads ? SEQPAR_NO_PEER : receivePeer);
  if (reads) {
    readOffer(mail, receivePeer, receive);
    sendSmall(mail, receivePeer, {});
  }
  if (offers) {
    receiveEmpty(mail, sendPeer);
    sendSmall(mail, sendPeer, {});
  }
  if (reads) receiveEmpty(mail, receivePeer);
}

}  // namespace seqpar
