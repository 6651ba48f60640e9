// Device memory of all ranks of a host, mapped by all of them.
#pragma once

#include "cuda.h"
#include "gpu.h"
#include "group.h"

namespace seqpar::perf {

/// Collective. Null, on all ranks, if some rank cannot map the memory of another.
std::unique_ptr<Window> makeWindow(Group& group, size_t bytes);

}  // namespace seqpar::perf
