// A ring: the state of a schedule, and a backend that executes it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "ring/backend.h"
#include "ring/schedule.h"

namespace seqpar {

/// Parameters that all ranks of a ring agree on.
struct RingSpec {
  RingForm form;
  std::vector<int> ranks;                  ///< rank of each place
  std::vector<std::vector<size_t>> bytes;  ///< [place][tensor]
  int place = 0;                           ///< of this rank
};

class Ring {
 public:
  /// Collective over the ring's ranks. The backend keeps `comm` alive. `buffers` has no sizes and sets yet.
  Ring(const std::shared_ptr<Communicator>& comm, RingSpec spec, RingBuffers buffers);

  /// These throw InvalidUsage if called in the wrong order; the text names the functions of the C interface.
  void post(const CallerStream& stream);
  /// A round that starts in a capture may only continue in that capture; other rounds may only continue outside of one.
  void wait(const CallerStream& stream);
  void reset();
  /// reset() with own tensors outside of home.
  void reset(std::vector<const std::byte*> own);

  const RingSpec& spec() const { return spec_; }
  size_t tensors() const { return spec_.bytes.front().size(); }
  int step() const { return step_; }
  bool posted() const { return posted_; }
  /// The place that the current tensors originate from.
  int origin() const { return ringOrigin(spec_.form, spec_.place, step_); }
  /// Own tensors outside of home must not be written.
  std::byte* current(size_t tensor) const {
    const bool own = (step_ == 0 || spec_.form.places == 1) && !own_.empty();
    return own ? const_cast<std::byte*>(own_[tensor]) : backend_->buffer(set_, tensor);
  }
  size_t ownBytes(size_t tensor) const { return spec_.bytes[static_cast<size_t>(spec_.place)][tensor]; }
  size_t currentBytes(size_t tensor) const { return spec_.bytes[static_cast<size_t>(origin())][tensor]; }
  const char* backendName() const { return backend_->name(); }
  /// The reason for the choice of backend.
  const std::string& reason() const { return choice_.reason; }

 private:
  void requireCapture(const CallerStream& stream) const;
  std::vector<RingTransfer> fromOwn(std::vector<RingTransfer> transfers) const;

  RingSpec spec_;
  RingChoice choice_;
  RingSchedule schedule_;
  std::vector<std::vector<RingTransfer>> transfers_;  ///< of each step
  std::unique_ptr<RingBackend> backend_;
  std::vector<const std::byte*> own_;  ///< [tensor]: own tensors in this round; empty: at home
  int step_ = 0;
  int set_ = 0;
  bool posted_ = false;
  unsigned long long capture_ = 0;  ///< id of the capture that contains the round
};

}  // namespace seqpar
