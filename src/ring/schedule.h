// Who holds whose tensors after which step of a ring, and what each step moves between which buffers: pure data, made
// alike on all ranks.
#pragma once

#include <cstddef>
#include <vector>

namespace seqpar {

/// The agreed form of a ring.
struct RingForm {
  int places = 1;
  int inner = 1;  ///< places of a window; divides places
  bool reverse = false;
  bool unchanged = true;
  bool keepHome = false;
  int steps = 0;
};

/// One movement of a step. Sets of buffers have the same numbers on all ranks; set 0 is home.
struct RingMove {
  int to = 0, from = 0;  ///< places
  int sendSet = 0, receiveSet = 0;
  int sendOrigin = 0, receiveOrigin = 0;  ///< places whose tensors these are
  int slice = 0, slices = 1;              ///< only this part of them; see sliceOf()
};

struct RingStep {
  std::vector<RingMove> moves;  ///< at once; none go to, or come from, one place
  int current = 0;              ///< the set that is current afterwards
};

struct RingSchedule {
  int sets = 1;
  std::vector<RingStep> steps;
};

/// The place whose tensors `place` holds after `step` steps.
int ringOrigin(const RingForm& form, int place, int step);

/// A place's part of all steps.
RingSchedule ringSchedule(const RingForm& form, int place);

struct Slice {
  size_t offset = 0, bytes = 0;
};

/// The part `slice` of `slices` of a tensor; parts are not made smaller than is worth a message, so the last ones may
/// be empty.
Slice sliceOf(size_t bytes, int slice, int slices);

}  // namespace seqpar
