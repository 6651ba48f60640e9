// Numbers of a state in memory, for kernels and for the host code that launches them.
#pragma once

#include "seqpar/types.h"

namespace seqpar {

/// Numbers in memory. data == nullptr stands for zeros.
struct Values {
  const void* data = nullptr;
  seqparDataType_t type = seqparFloat32;
};

}  // namespace seqpar
