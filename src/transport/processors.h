// How many processors the ranks of a host have to share.
#pragma once

#include <vector>

#include "bootstrap/allgather.h"

namespace seqpar {

/// Collective over `control`: true if the ranks r with onHost[r], this one included, may together use at least as many
/// processors as they are, so that one of them may spin without keeping another from running.
bool haveProcessorEach(Allgather& control, const std::vector<bool>& onHost);

}  // namespace seqpar
