// A ring: the schedule's state beside a backend that carries it out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "ring/backend.h"
#include "ring/schedule.h"

namespace seqpar {

/// What all ranks of a ring agree on.
struct RingSpec {
  RingForm form;
  std::vector<int> ranks;                  ///< rank of each place
  std::vector<std::vector<size_t>> bytes;  ///< [place][tensor]
  int place = 0;                           ///< this rank's
};

class Ring {
 public:
  /// Collective over the ring's ranks. The backend keeps `comm` alive. `buffers` without sizes and sets.
  Ring(const std::shared_ptr<Communicator>& comm, RingSpec spec, RingBuffers buffers);

  /// These throw InvalidUsage where they come in the wrong order; the text names the C interface's calls.
  void post(const CallerStream& stream);
  /// A round that was begun in a capture goes on in that capture only, and no other round does.
  void wait(const CallerStream& stream);
  void reset();
  /// reset() with own tensors elsewhere than at home.
  void reset(std::vector<const std::byte*> own);

  const RingSpec& spec() const { return spec_; }
  size_t tensors() const { return spec_.bytes.front().size(); }
  int step() const { return step_; }
  bool posted() const { return posted_; }
  /// The place whose tensors the current ones were.
  int origin() const { return ringOrigin(spec_.form, spec_.place, step_); }
  /// Own tensors that lie elsewhere are only to be read.
  std::byte* current(size_t tensor) const {
    const bool own = (step_ == 0 || spec_.form.places == 1) && !own_.empty();
    return own ? const_cast<std::byte*>(own_[tensor]) : backend_->buffer(set_, tensor);
  }
  size_t ownBytes(size_t tensor) const { return spec_.bytes[static_cast<size_t>(spec_.place)][tensor]; }
  size_t currentBytes(size_t tensor) const { return spec_.bytes[static_cast<size_t>(origin())][tensor]; }
  const char* backendName() const { return backend_->name(); }
  /// Why it is that backend.
  const std::string& reason() const { return choice_.reason; }

 private:
  void requireCapture(const CallerStream& stream) const;
  std::vector<RingTransfer> fromOwn(std::vector<RingTransfer> transfers) const;

  RingSpec spec_;
  RingChoice choice_;
  RingSchedule schedule_;
  std::vector<std::vector<RingTransfer>> transfers_;  ///< of each step
  std::unique_ptr<RingBackend> backend_;
  std::vector<const std::byte*> own_;  ///< [tensor]: where own tensors lie in this round; empty: at home
  int step_ = 0;
  int set_ = 0;
  bool posted_ = false;
  unsigned long long capture_ = 0;  ///< in which the round was begun
};

}  // namespace seqpar
