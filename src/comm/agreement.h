// The debug check that the ranks of a collective were called with matching arguments.
#pragma once

#include <cstdint>
#include <span>

#include "bootstrap/allgather.h"

namespace seqpar {

struct NamedValue {
  const char* name;
  int64_t value;
};

/// Collective: compares the call's name and all values between the ranks. A difference is InvalidUsage on every rank,
/// with the argument and the ranks that differ from rank 0. At most 24 values.
void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values);

}  // namespace seqpar
