// Segments of a window of the delta rule on a GPU (delta::Task::segments), for chains that leave SMs idle.
#pragma once

#include <vector>

#include "kernels/attn/linear/delta/task.h"

namespace seqpar::attn::linear {

struct SegmentPlan {
  /// Chunks of the segments, in the order in which a chain runs through them: in Retreat the last chunks first. Empty:
  /// the chains run through the window without segments.
  std::vector<int> counts;
  /// Segments begin where sequences do, and run in one launch. Else there are three, in two launches: the first segment
  /// and the map of the second one; then the second and the third segment, after a fold has computed the third one's
  /// first states from the map.
  bool independent = false;
};

/// The segments that are estimated to take the least time on `sms` SMs. `chunks`: the window's, on the host. `least`:
/// the least chunks of which segments may save the time.
SegmentPlan planSegments(delta::Step step, const delta::Task& task, const delta::Chunk* chunks, int sms, int least);

}  // namespace seqpar::attn::linear
