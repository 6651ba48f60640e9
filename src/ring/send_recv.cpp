#include "ring/send_recv.h"

#include <algorithm>
#include <array>
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
/// From here on one copy, and the three messages about it, are faster than two copies.
constexpr size_t kInPlace = size_t{128} << 10;

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

bool inPlace(const Mailbox& mail, int peer, size_t bytes) {
  return bytes >= kInPlace && mail.readable(peer);
}

/// One direction of a flow: its tensors' pieces one after the other, without what is read in place.
template <typename Byte>
class Pieces {
 public:
  Pieces() = default;
  Pieces(const Mailbox& mail, int peer, std::span<const std::span<Byte>> tensors)
      : mail_(&mail), peer_(peer), tensors_(peer == SEQPAR_NO_PEER ? std::span<const std::span<Byte>>{} : tensors) {
    skip();
  }

  bool left() const { return tensor_ < tensors_.size(); }
  int peer() const { return peer_; }

  std::span<Byte> next() {
    const auto all = tensors_[tensor_];
    const Cut cut(all.size());
    const auto piece = cut.of(all, index_);
    if (++index_ == cut.count()) {
      ++tensor_;
      index_ = 0;
      skip();
    }
    return piece;
  }

  /// Calls visit(tensor) for all that is read in place.
  template <typename Visit>
  void eachInPlace(Visit visit) const {
    for (const auto& tensor : tensors_) {
      if (inPlace(*mail_, peer_, tensor.size())) visit(tensor);
    }
  }

 private:
  void skip() {
    while (left() && inPlace(*mail_, peer_, tensors_[tensor_].size())) ++tensor_;
  }

  const Mailbox* mail_ = nullptr;
  int peer_ = SEQPAR_NO_PEER;
  std::span<const std::span<Byte>> tensors_;
  size_t tensor_ = 0, index_ = 0;
};

struct Progress {
  Pieces<const std::byte> out;
  Pieces<std::byte> in;
};

/// All pieces through messages. All ranks take the same steps, publish before they receive, and never lead by more than
/// the window: no ring of them can lock.
void exchangePieces(Mailbox& mail, std::span<Progress> flows) {
  const auto unfinished = [](const Progress& flow) { return flow.out.left() || flow.in.left(); };
  for (size_t step = 0; std::any_of(flows.begin(), flows.end(), unfinished); ++step) {
    for (auto& flow : flows) {
      if (flow.out.left()) sendSmall(mail, flow.out.peer(), flow.out.next());
    }
    for (auto& flow : flows) {
      if (step < kLead || !flow.in.left()) continue;
      const auto piece = flow.in.next();
      copyFrom(piece.data(), mail.receive(flow.in.peer(), piece.size()), piece.size());
      mail.release(flow.in.peer());
    }
  }
}

void readOffer(Mailbox& mail, int from, std::span<std::byte> into) {
  uint64_t address = 0;
  std::memcpy(&address, mail.receive(from, sizeof(address)), sizeof(address));
  mail.release(from);
  mail.read(from, address, into);
  sendSmall(mail, from, {});
}

}  // namespace

void exchangeFlows(Mailbox& mail, std::span<const Flow> flows) {
  std::array<Progress, kMostFlows> storage;
  const std::span progress(storage.data(), flows.size());
  for (size_t i = 0; i < flows.size(); ++i) {
    progress[i] = {{mail, flows[i].to, flows[i].out}, {mail, flows[i].from, flows[i].in}};
  }
  exchangePieces(mail, progress);

  // A large buffer: its address goes to the receiver, which reads it and says so. The sender's answer, that it was
  // still waiting, is what makes the bytes good: one that had given up might have changed them.
  for (const auto& flow : progress) {
    flow.out.eachInPlace([&](std::span<const std::byte> tensor) {
      const auto address = reinterpret_cast<uint64_t>(tensor.data());
      sendSmall(mail, flow.out.peer(), std::as_bytes(std::span(&address, 1)));
    });
  }
  for (const auto& flow : progress) {
    flow.in.eachInPlace([&](std::span<std::byte> tensor) { readOffer(mail, flow.in.peer(), tensor); });
  }
  for (const auto& flow : progress) {
    flow.out.eachInPlace([&](auto) {
      receiveEmpty(mail, flow.out.peer());
      sendSmall(mail, flow.out.peer(), {});
    });
  }
  for (const auto& flow : progress) {
    flow.in.eachInPlace([&](auto) { receiveEmpty(mail, flow.in.peer()); });
  }
}

void sendReceive(Mailbox& mail, std::span<const std::byte> send, int sendPeer, std::span<std::byte> receive,
                 int receivePeer) {
  const Flow flow{sendPeer, std::span(&send, 1), receivePeer, std::span(&receive, 1)};
  exchangeFlows(mail, std::span(&flow, 1));
}

}  // namespace seqpar
