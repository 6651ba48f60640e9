#include "ring/ring.h"

#include <algorithm>
#include <utility>

namespace seqpar {
namespace {

RingBuffers sized(RingBuffers buffers, const RingSpec& spec, int ranks) {
  buffers.keepHome = spec.form.keepHome;
  buffers.everybody = spec.form.places == ranks;
  buffers.mostBytes.assign(spec.bytes.front().size(), 0);
  for (const auto& ofPlace : spec.bytes) {
    for (size_t tensor = 0; tensor < ofPlace.size(); ++tensor) {
      buffers.mostBytes[tensor] = std::max(buffers.mostBytes[tensor], ofPlace[tensor]);
    }
  }
  return buffers;
}

/// The parts of a place's tensors that a move transfers; empty tensors are omitted on both sides.
std::vector<RingPart> parts(const RingSpec& spec, int origin, int set, const RingMove& move) {
  std::vector<RingPart> out;
  const auto& bytes = spec.bytes[static_cast<size_t>(origin)];
  for (size_t tensor = 0; tensor < bytes.size(); ++tensor) {
    const Slice slice = sliceOf(bytes[tensor], move.slice, move.slices);
    if (slice.bytes > 0) out.push_back({set, tensor, slice.offset, slice.bytes});
  }
  return out;
}

std::vector<RingTransfer> transfersOf(const RingSpec& spec, const RingStep& step) {
  std::vector<RingTransfer> out;
  for (const auto& move : step.moves) {
    RingTransfer transfer{spec.ranks[static_cast<size_t>(move.to)],
                          spec.ranks[static_cast<size_t>(move.from)],
                          parts(spec, move.sendOrigin, move.sendSet, move),
                          parts(spec, move.receiveOrigin, move.receiveSet, move),
                          move.receiveSet,
                          move.sendSet == 0 && move.sendOrigin == spec.place};
    if (!transfer.out.empty() || !transfer.in.empty()) out.push_back(std::move(transfer));
  }
  return out;
}

}  // namespace

Ring::Ring(const std::shared_ptr<Communicator>& comm, RingSpec spec, RingBuffers buffers) : spec_(std::move(spec)) {
  buffers = sized(std::move(buffers), spec_, comm->size());
  choice_ = chooseRingBackend(*comm, buffers);
  spec_.form.keepHome = buffers.keepHome = buffers.keepHome || choice_.keepHome;
  schedule_ = ringSchedule(spec_.form, spec_.place);
  for (const auto& step : schedule_.steps) transfers_.push_back(transfersOf(spec_, step));
  buffers.sets = schedule_.sets;
  backend_ = makeRingBackend(comm, buffers, choice_);
}

/// Buffers rotate with the steps, so a replay that started in the middle of a round would find other ranks' tensors in
/// them.
void Ring::requireCapture(const CallerStream& stream) const {
  const auto capture = backend_->capture(stream);
  if (capture == capture_) return;
  const char* const expected =
      "; expected a round that is captured as a whole, from its first transfer on, or not at all";
  if (capture_ == 0) {
    fail(seqparInvalidUsage, "the stream is being captured, but the round was started outside the capture", expected);
  }
  fail(seqparInvalidUsage, "the round was started in a capture, but this call is ",
       capture == 0 ? "outside it" : "in another one", expected);
}

std::vector<RingTransfer> Ring::fromOwn(std::vector<RingTransfer> transfers) const {
  for (auto& transfer : transfers) {
    if (!transfer.own) continue;
    for (auto& part : transfer.out) part.source = own_[part.tensor] + part.offset;
  }
  return transfers;
}

void Ring::post(const CallerStream& stream) {
  if (posted_) {
    fail(seqparInvalidUsage, "transfer ", step_ + 1, " was posted and not waited for; expected seqparRingWait first");
  }
  if (step_ == spec_.form.steps) {
    fail(seqparInvalidUsage, "all ", step_, " transfers of the round are done; expected seqparRingReset first");
  }
  if (step_ == 0) capture_ = backend_->capture(stream);
  requireCapture(stream);
  const auto& transfers = transfers_[static_cast<size_t>(step_)];
  backend_->post(own_.empty() ? transfers : fromOwn(transfers), stream);
  posted_ = true;
}

void Ring::wait(const CallerStream& stream) {
  if (!posted_) fail(seqparInvalidUsage, "no transfer was posted; expected seqparRingPost first");
  requireCapture(stream);
  backend_->wait(stream);
  posted_ = false;
  set_ = schedule_.steps[static_cast<size_t>(step_)].current;
  ++step_;
}

void Ring::reset() {
  // Transfers posted in a capture run when its graph is replayed, if ever.
  if (posted_ && capture_ == 0) {
    fail(seqparInvalidUsage, "transfer ", step_ + 1, " was posted and not waited for; expected seqparRingWait first");
  }
  step_ = set_ = 0;
  posted_ = false;
  own_.clear();
}

void Ring::reset(std::vector<const std::byte*> own) {
  reset();
  own_ = std::move(own);
}

}  // namespace seqpar
