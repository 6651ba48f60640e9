// The element types of states as C++ types. Sources compiled for one processor include this header: it contains no
// code.
#pragma once

#include <cstdint>

namespace seqpar {

/// IEEE binary16 as bits.
struct Half {
  std::uint16_t bits;
};

/// The upper half of IEEE binary32 as bits.
struct Bfloat16 {
  std::uint16_t bits;
};

}  // namespace seqpar
