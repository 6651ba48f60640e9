// The fp64 reference of families with a headRecurrence().
#pragma once

#include <vector>

#include "support/linear_case.h"

namespace seqpar::test {

/// Adds the results of all heads to `to`, whose arrays are 0.
void deltaReference(const LinearCase& c, const std::vector<size_t>& borders, LinearReference& to);

}  // namespace seqpar::test
