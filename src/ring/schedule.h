// The origin of every place's tensors after each step of a ring, and the transfers between buffers in each step: pure
// data, identical on all ranks.
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

/// One transfer of a step. Sets of buffers have the same indices on all ranks; set 0 is home.
struct RingMove {
  int to = 0, from = 0;  ///< places
  int sendSet = 0, receiveSet = 0;
  int sendOrigin = 0, receiveOrigin = 0;  ///< places that the tensors originate from
  int slice = 0, slices = 1;              ///< only this part of them; see sliceOf()
};

struct RingStep {
  std::vector<RingMove> moves;  ///< concurrent; each place sends to another place and receives from another
  int current = 0;              ///< the set that is current afterwards
};

struct RingSchedule {
  int sets = 1;
  std::vector<RingStep> steps;
};

/// The place that the tensors of `place` after `step` steps originate from.
int ringOrigin(const RingForm& form, int place, int step);

/// A place's part of all steps.
RingSchedule ringSchedule(const RingForm& form, int place);

struct Slice {
  size_t offset = 0, bytes = 0;
};

/// Part `slice` of `slices` of a tensor. Parts have a minimum size that justifies a message, so the last ones may be
/// empty.
Slice sliceOf(size_t bytes, int slice, int slices);

}  // namespace seqpar
