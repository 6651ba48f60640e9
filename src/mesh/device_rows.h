// Partial results of one block from two sides, made into one on a GPU; see rows.h.
#pragma once

#include "device/group.h"
#include "mesh/rows.h"

namespace seqpar {

/// out (of `result`) becomes data (of types.data) merged with carry (of types.wire), by lse and carryLse; lse is left
/// as it is. `out` may be `data` if the types agree. Without carry, out is data converted.
void launchMergeOutputs(void* out, const void* data, const void* carry, const float* lse, const float* carryLse,
                        const OutputShape& shape, PartialTypes types, seqparDataType_t result, DeviceStream stream);
/// lse becomes the merged one.
void launchMergeLse(float* lse, const float* carryLse, std::size_t rows, DeviceStream stream);
/// out = data + carry, or data.
void launchAddSums(void* out, const void* data, const void* carry, std::size_t count, PartialTypes types,
                   seqparDataType_t result, DeviceStream stream);

}  // namespace seqpar
