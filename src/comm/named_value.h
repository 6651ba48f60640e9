// An argument of a call, for comparisons and records.
#pragma once

#include <cstdint>

namespace seqpar {

struct NamedValue {
  const char* name;  ///< a literal
  int64_t value;
};

}  // namespace seqpar
