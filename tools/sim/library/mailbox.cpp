#include "library/mailbox.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/target.h"
#include "transport/segment.h"

namespace seqpar {
namespace sim {
namespace {

bool onHosts() {
  return Recorder::current().machine().onHosts();
}

/// Messages with the addresses of a tensor have at most this many bytes.
constexpr size_t kMostAnnounced = 2048;
/// The message under construction has contents.
bool announces = false;

/// The largest messages that take no longer than a hop: states of 1 KiB with their decays.
constexpr size_t kSmallMessage = 1536;

/// Bytes that were copied from views since the last endViews().
size_t copiedFromViews = 0;

/// The work of copying a message's bytes in or out. GPUs' copies are part of their messages.
void chargeCopy(size_t bytes) {
  if (onHosts())
    Recorder::current().step(StepKind::Work, 0, static_cast<double>(bytes) / Recorder::current().copyGbs() * 1e-3);
}

}  // namespace

size_t RecordingMailbox::maxMessage() const {
  return onHosts() ? kMaxMessage : size_t{1} << 40;
}

size_t RecordingMailbox::window() const {
  return onHosts() ? kWindow : size_t{1} << 50;
}

bool RecordingMailbox::direct(int peer) const {
  return onHosts() && Recorder::current().nodeOf(peer) == Recorder::current().nodeOf(rank());
}

Target RecordingMailbox::acquire(std::span<const int> to, size_t bytes) {
  // A message to several ranks goes to the ranks after this one first, so that not all send to the same rank.
  to_.assign(to.begin(), to.end());
  std::rotate(to_.begin(), std::find_if(to_.begin(), to_.end(), [&](int each) { return each > rank(); }), to_.end());
  bytes_ = bytes;
  announces = false;
  return at(bytes);
}

void RecordingMailbox::commit() {
  receives_ = false;
  auto& recorder = Recorder::current();
  const StepKind kind = posts_ ? StepKind::Post : to_.size() > 1 ? StepKind::Share : StepKind::Send;
  if (onHosts()) recorder.step(StepKind::Work, 0, recorder.machine().host.messageUs);
  for (const int to : to_) {
    recorder.step(kind, to, static_cast<double>(bytes_) * scale_);
    if (bytes_ == 0) continue;
    recorder.sent(to, announces ? std::span<const std::byte>(at(bytes_), bytes_) : std::span<const std::byte>());
  }
  announces = false;
}

const std::byte* RecordingMailbox::receive(int from, size_t bytes) {
  auto& recorder = Recorder::current();
  const auto& machine = recorder.machine();
  const bool shared = machine.onHosts() && machine.gpus > machine.host.processors;
  // Another rank runs meanwhile. When this one runs again, small messages of other peers have arrived too.
  const bool arrived = receives_ && bytes <= kSmallMessage;
  if (shared && !arrived) recorder.step(StepKind::Work, 0, machine.host.switchUs);
  receives_ = true;
  recorder.step(StepKind::Receive, from, static_cast<double>(bytes) * scale_);
  // A hop is the reader's wait for memory that another processor wrote, so several messages' hops add up.
  if (direct(from)) recorder.step(StepKind::Work, 0, machine.host.alphaUs);
  std::byte* const to = at(bytes);
  if (bytes > 0) recorder.received(from, std::span(to, std::min(bytes, kMostAnnounced)));
  return to;
}

void RecordingMailbox::read(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into) {
  double bytes = 0;
  for (const auto& part : into) {
    bytes += static_cast<double>(part.size()) * (Recorder::isTensor(part.data()) ? 1 : scale_);
  }
  auto& recorder = Recorder::current();
  recorder.step(StepKind::Read, peer, bytes);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  const bool maps = mapped(peer) && Recorder::isMapped(reinterpret_cast<const void*>(from.front().address));
  recorder.step(StepKind::Work, 0, bytes / (maps ? recorder.copyGbs() : recorder.readGbs()) * 1e-3);
}

/// The bytes are copied or added from the returned address: the work of the caller.
const std::byte* RecordingMailbox::view(int peer, uint64_t address, size_t bytes) {
  viewed_[peer] += bytes;
  // Ranks have equal addresses.
  return reinterpret_cast<const std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// Views of strided payloads include the gaps, which are not copied.
void RecordingMailbox::endViews(int peer) {
  const size_t bytes = copiedFromViews > 0 ? copiedFromViews : viewed_[peer];
  Recorder::current().step(StepKind::Read, peer, static_cast<double>(bytes));
  viewed_[peer] = copiedFromViews = 0;
}

std::byte* RecordingMailbox::at(size_t bytes) {
  if (memory_.size() < bytes + 64) memory_.resize(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  return memory_.data() + (64 - address % 64) % 64;
}

}  // namespace sim

// Copies between messages and tensors, which have no memory here.
void copyPartTo(Target, const void*, size_t bytes) {
  sim::chargeCopy(bytes);
}

void finishParts() {}

void copyTo(Target to, const void* from, size_t bytes) {
  if (sim::onHosts() && bytes <= sim::kMostAnnounced && !sim::Recorder::isTensor(from)) {
    std::memcpy(to.data, from, bytes);
    sim::announces = true;
    return;
  }
  sim::chargeCopy(bytes);
}

void copyFrom(void*, const void* from, size_t bytes, Store) {
  if (sim::Recorder::isMapped(from)) sim::copiedFromViews += bytes;
  sim::chargeCopy(bytes);
}

std::unique_ptr<Mailbox> makeMailbox(Allgather&, const MailboxOptions&, Health&, MailboxDescription& description) {
  description = {"simulated", ""};
  return std::make_unique<sim::RecordingMailbox>();
}

}  // namespace seqpar
