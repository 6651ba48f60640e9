#include "ring/ring.h"

#include <algorithm>
#include <utility>

#include "ring/device_engine.h"

namespace seqpar {
namespace {

RingBuffers sized(RingBuffers buffers, const RingSpec& spec, int sets, int ranks) {
  buffers.sets = sets;
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

/// The parts of a place's tensors that move; whole tensors that are empty are left out on both sides.
std::vector<RingPart> parts(const RingSpec& spec, int origin, int set, const RingMove& move) {
  std::vector<RingPart> out;
  const auto& bytes = spec.bytes[static_cast<size_t>(origin)];
  for (size_t tensor = 0; tensor < bytes.size(); ++tensor) {
    const Slice slice = sliceOf(bytes[tensor], move.slice, move.slices);
    if (slice.bytes > 0) out.push_back({set, tensor, slice.offset, slice.bytes});
  }
  return out;
}

}  // namespace

std::unique_ptr<RingEngine> makeRingEngine(std::shared_ptr<Communicator> comm, const RingBuffers& buffers) {
  if (comm->device() != nullptr) return makeDeviceRingEngine(std::move(comm), buffers);
  return makeHostRingEngine(std::move(comm), buffers);
}

Ring::Ring(const std::shared_ptr<Communicator>& comm, RingSpec spec, RingBuffers buffers)
    : spec_(std::move(spec)),
      schedule_(ringSchedule(spec_.form, spec_.place)),
      engine_(makeRingEngine(comm, sized(std::move(buffers), spec_, schedule_.sets, comm->size()))) {}

std::vector<RingTransfer> Ring::transfers(const RingStep& step) const {
  std::vector<RingTransfer> out;
  for (const auto& move : step.moves) {
    RingTransfer transfer{spec_.ranks[static_cast<size_t>(move.to)], spec_.ranks[static_cast<size_t>(move.from)],
                          parts(spec_, move.sendOrigin, move.sendSet, move),
                          parts(spec_, move.receiveOrigin, move.receiveSet, move), move.receiveSet};
    if (!transfer.out.empty() || !transfer.in.empty()) out.push_back(std::move(transfer));
  }
  return out;
}

void Ring::post(const CallerStream& stream) {
  if (posted_) {
    fail(seqparInvalidUsage, "transfer ", step_ + 1, " was posted and not waited for; expected seqparRingWait first");
  }
  if (step_ == spec_.form.steps) {
    fail(seqparInvalidUsage, "all ", step_, " transfers of the round are done; expected seqparRingReset first");
  }
  engine_->post(transfers(schedule_.steps[static_cast<size_t>(step_)]), stream);
  posted_ = true;
}

void Ring::wait(const CallerStream& stream) {
  if (!posted_) fail(seqparInvalidUsage, "no transfer was posted; expected seqparRingPost first");
  engine_->wait(stream);
  posted_ = false;
  set_ = schedule_.steps[static_cast<size_t>(step_)].current;
  ++step_;
}

void Ring::reset() {
  if (posted_) {
    fail(seqparInvalidUsage, "transfer ", step_ + 1, " was posted and not waited for; expected seqparRingWait first");
  }
  step_ = set_ = 0;
}

}  // namespace seqpar
