#include "library/mailbox.h"

#include <algorithm>

#include "base/error.h"
#include "base/target.h"
#include "transport/segment.h"

namespace seqpar {
namespace sim {
namespace {

bool onHosts() {
  return Recorder::current().machine().onHosts();
}

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
  return at(bytes);
}

void RecordingMailbox::commit() {
  auto& recorder = Recorder::current();
  const StepKind kind = posts_ ? StepKind::Post : to_.size() > 1 ? StepKind::Share : StepKind::Send;
  if (onHosts()) recorder.step(StepKind::Work, 0, recorder.machine().host.messageUs);
  for (const int to : to_) recorder.step(kind, to, static_cast<double>(bytes_) * scale_);
}

const std::byte* RecordingMailbox::receive(int from, size_t bytes) {
  Recorder::current().step(StepKind::Receive, from, static_cast<double>(bytes) * scale_);
  return at(bytes);
}

void RecordingMailbox::read(int, std::span<const RemoteBytes>, std::span<const std::span<std::byte>>) {
  fail(seqparInternalError, "a simulated rank reads another one's memory");
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

void copyTo(Target, const void*, size_t bytes) {
  sim::chargeCopy(bytes);
}

void copyFrom(void*, const void*, size_t bytes, Store) {
  sim::chargeCopy(bytes);
}

std::unique_ptr<Mailbox> makeMailbox(Allgather&, const MailboxOptions&, Health&, MailboxDescription& description) {
  description = {"simulated", ""};
  return std::make_unique<sim::RecordingMailbox>();
}

}  // namespace seqpar
