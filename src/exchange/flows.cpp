#include "exchange/flows.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "transport/rendezvous.h"

namespace seqpar {
namespace {

/// Minimum and maximum region: smaller messages do not pay off; larger ones delay the copy out, which follows the copy
/// in.
constexpr size_t kLeastRegion = size_t{8} << 10;
constexpr size_t kMostRegion = size_t{64} << 10;
/// Number of regions for a buffer between these bounds.
constexpr size_t kRegions = 4;
/// Regions that a rank sends before it waits for the first: slack between neighbors, well inside the mailbox's window.
constexpr size_t kLead = 2;
/// From this size on, a tensor between ranks that can read each other may be read by the kernel. Such a tensor, or one
/// that may be mapped, starts with an RTS: its address, or 0 if it is sent in regions.
constexpr size_t kRendezvousBytes = size_t{128} << 10;

/// One direction of an exchange, cut into regions; equal cuts at both ends.
class Cut {
 public:
  explicit Cut(size_t bytes)
      : bytes_(bytes),
        region_(std::clamp((bytes / kRegions + kCacheLine - 1) / kCacheLine * kCacheLine, kLeastRegion, kMostRegion)) {}

  size_t count() const { return bytes_ == 0 ? 1 : (bytes_ + region_ - 1) / region_; }
  template <typename Byte>
  std::span<Byte> of(std::span<Byte> all, size_t index) const {
    return all.subspan(index * region_, std::min(region_, bytes_ - index * region_));
  }

 private:
  static constexpr size_t kCacheLine = 64;
  size_t bytes_, region_;
};

/// One direction of a flow: its tensors' regions in order, except tensors that are read in place. rts_ is not
/// initialized: each entry is written before it is read, and most flows have none.
template <typename Byte>
class Regions {  // NOLINT(cppcoreguidelines-pro-type-member-init)
 public:
  Regions() = default;  // NOLINT(cppcoreguidelines-pro-type-member-init)

  void begin(const Mailbox& mail, int peer, std::span<const std::span<Byte>> tensors) {
    mail_ = &mail;
    peer_ = peer;
    if (peer != SEQPAR_NO_PEER) tensors_ = tensors;
    if (tensors_.size() > kMostTensors) {
      fail(seqparInternalError, tensors_.size(), " tensors in a flow, expected at most ", kMostTensors);
    }
  }

  int peer() const { return peer_; }
  bool hasLarge() const {
    return std::any_of(tensors_.begin(), tensors_.end(),
                       [](const auto& tensor) { return tensor.size() >= kRendezvousBytes; });
  }

  /// Calls visit(tensor, rts) for all tensors that start with an RTS; visit sets it.
  template <typename Visit>
  void eachRts(Visit visit) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (hasRts(i)) visit(tensors_[i], rts_[i]);
    }
    skip();
  }

  /// Calls visit(tensor, rts) for all tensors that are read in place.
  template <typename Visit>
  void eachInPlace(Visit visit) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (inPlace(i)) visit(tensors_[i], rts_[i]);
    }
  }

  bool left() const { return tensor_ < tensors_.size(); }

  std::span<Byte> next() {
    const auto all = tensors_[tensor_];
    const Cut cut(all.size());
    const auto region = cut.of(all, index_);
    if (++index_ == cut.count()) {
      ++tensor_;
      index_ = 0;
      skip();
    }
    return region;
  }

 private:
  bool hasRts(size_t i) const { return byRendezvous(*mail_, peer_, tensors_[i].size(), kRendezvousBytes); }
  bool inPlace(size_t i) const { return hasRts(i) && rts_[i] != 0; }
  void skip() {
    while (left() && inPlace(tensor_)) ++tensor_;
  }

  const Mailbox* mail_ = nullptr;
  int peer_ = SEQPAR_NO_PEER;
  std::span<const std::span<Byte>> tensors_;
  size_t tensor_ = 0, index_ = 0;
  std::array<uint64_t, kMostTensors> rts_;
};

struct Progress {
  Regions<const std::byte> out;
  Regions<std::byte> in;
};

/// Exchanges all regions through messages. All ranks take the same steps, publish before they receive, and never lead
/// by more than the window: no cycle of them can deadlock.
void exchangeRegions(Mailbox& mail, std::span<Progress> flows) {
  const auto unfinished = [](const Progress& flow) { return flow.out.left() || flow.in.left(); };
  for (size_t step = 0; std::any_of(flows.begin(), flows.end(), unfinished); ++step) {
    for (auto& flow : flows) {
      if (!flow.out.left()) continue;
      const auto region = flow.out.next();
      copyTo(mail.acquire(flow.out.peer(), region.size()), region.data(), region.size());
      mail.commit();
    }
    for (auto& flow : flows) {
      if (step < kLead || !flow.in.left()) continue;
      const auto region = flow.in.next();
      copyFrom(region.data(), mail.receive(flow.in.peer(), region.size()), region.size());
      mail.release(flow.in.peer());
    }
  }
}

/// Every rank sends its RTS before it waits for those of other ranks.
void exchangeRts(Mailbox& mail, std::span<Progress> flows) {
  for (auto& flow : flows) {
    // A rank that also receives copies regions both in and out, and reading in place saves one of the copies. A rank
    // that only sends shares the two copies with the receiver, which is faster below kMostMessages.
    const bool receives = flow.in.hasLarge();
    flow.out.eachRts([&](std::span<const std::byte> tensor, uint64_t& rts) {
      const int to = flow.out.peer();
      const bool worth = tensor.size() >= kRendezvousBytes && mail.readable(to);
      const bool inPlace =
          sendsMapped(mail, to, tensor) ||
          (worth && (tensor.size() >= Mailbox::kMostMessages || (receives && !mail.prefersMessages(to))));
      rts = inPlace ? reinterpret_cast<uint64_t>(tensor.data()) : 0;
      sendRts(mail, to, rts);
    });
  }
  for (auto& flow : flows) {
    flow.in.eachRts([&](std::span<std::byte>, uint64_t& rts) { rts = receiveRts(mail, flow.in.peer()); });
  }
}

/// Fast path for at most one message per direction, with the same messages as the general path. False: not done.
bool exchangeSmall(Mailbox& mail, const Flow& flow) {
  const bool sends = flow.to != SEQPAR_NO_PEER, receives = flow.from != SEQPAR_NO_PEER;
  if (sends && (flow.out.size() != 1 || flow.out[0].size() >= kLeastRegion)) return false;
  if (receives && (flow.in.size() != 1 || flow.in[0].size() >= kLeastRegion)) return false;
  if (sends) {
    const auto out = flow.out[0];
    copyTo(mail.acquire(flow.to, out.size()), out.data(), out.size());
    mail.commit();
  }
  if (receives) {
    const auto in = flow.in[0];
    copyFrom(in.data(), mail.receive(flow.from, in.size()), in.size());
    mail.release(flow.from);
  }
  return true;
}

}  // namespace

void exchangeFlows(Mailbox& mail, std::span<const Flow> flows) {
  if (flows.size() == 1 && exchangeSmall(mail, flows[0])) return;
  std::array<Progress, kMostFlows> storage;
  const std::span progress(storage.data(), flows.size());
  for (size_t i = 0; i < flows.size(); ++i) {
    progress[i].out.begin(mail, flows[i].to, flows[i].out);
    progress[i].in.begin(mail, flows[i].from, flows[i].in);
  }
  exchangeRts(mail, progress);
  exchangeRegions(mail, progress);

  for (const auto& flow : progress) {
    flow.in.eachInPlace([&](std::span<std::byte> tensor, uint64_t rts) {
      mail.read(flow.in.peer(), rts, tensor);
      sendFin(mail, flow.in.peer());
    });
  }
  for (const auto& flow : progress) {
    flow.out.eachInPlace([&](auto, auto) { awaitFin(mail, flow.out.peer()); });
  }
}

}  // namespace seqpar
