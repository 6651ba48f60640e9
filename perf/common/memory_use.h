// The report of -M.
#pragma once

#include <string>

#include "group.h"

namespace seqpar::perf {

/// Collective, as text: the maximum over ranks of the process's peak memory, and of the memory in use on its GPU (by
/// all processes).
std::string memoryUse(Group& group);
/// Bytes in use on the rank's GPU (by all processes), or resident in its process.
size_t memoryInUse(const Group& group);

}  // namespace seqpar::perf
