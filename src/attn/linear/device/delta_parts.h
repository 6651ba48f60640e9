// Parts of a window of the delta rule on a GPU. The chain of a part leaves SMs idle, on which the next part is
// prepared.
#pragma once

#include <vector>

#include "kernels/attn/linear/delta/task.h"

namespace seqpar::attn::linear {

/// The numbers of chunks of a window's parts, in order, for the kernels for 16-bit tensors: one part if more are
/// estimated to take longer. `least`: the least chunks of a part.
std::vector<int> partsOf(const delta::Task& task, int least);

/// Whether the preparation of a window and the chains that compute its outputs overlap record by record (Task::marks).
/// Sets how many of Task::sms are left to the chains. `least`: the least chunks of the window.
bool planOverlap(delta::Task& task, int least);

}  // namespace seqpar::attn::linear
