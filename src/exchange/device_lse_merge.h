// Merging partial attention of the same queries over all GPUs, with the kernels of exchanges and of sums.
#pragma once

#include "device/group.h"
#include "exchange/lse_merge.h"

namespace seqpar {

/// Enqueues one rank's part on `stream`. Merges all rows of the buffers: rowCount is not read, so the launches do not
/// depend on it.
void mergeLseOnDevice(DeviceGroup& group, const LseMerge& given, DeviceStream stream);

}  // namespace seqpar
