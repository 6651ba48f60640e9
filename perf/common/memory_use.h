// What -M reports.
#pragma once

#include <string>

#include "group.h"

namespace seqpar::perf {

/// Collective: in words, the most that any rank has of each: the peak of its process, and what is in use on its GPU by
/// anybody.
std::string memoryUse(Group& group);
/// Bytes in use on the rank's GPU by anybody, or resident in its process.
size_t memoryInUse(const Group& group);

}  // namespace seqpar::perf
