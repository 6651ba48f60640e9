// Elements of a state in memory, for kernels and for the host code that launches them.
#pragma once

#include "seqpar/types.h"

namespace seqpar {

/// Elements in memory. data == nullptr means zeros.
struct Values {
  const void* data = nullptr;
  seqparDataType_t type = seqparFloat32;
};

}  // namespace seqpar
