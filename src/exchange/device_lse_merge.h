// Merging partial attention of the same queries over all GPUs: in one kernel if all ranks are peers, otherwise with the
// kernels of exchanges and of sums.
#pragma once

#include "device/group.h"
#include "exchange/device_exchanges.h"
#include "exchange/lse_merge.h"

namespace seqpar {

/// DeviceExchanges::mergeInKernel() between peers: false for heads of more than 8 KiB.
bool mergeLseByKernel(DeviceGroup& group, const LseMerge& given, DeviceStream stream);

/// Enqueues one rank's part on `stream`. The kernel between peers reads rowCount; the other way, also used for heads of
/// more than 8 KiB, merges all rows of the buffers, so its launches do not depend on rowCount.
void mergeLseOnDevice(const DeviceExchanges& by, DeviceGroup& group, const LseMerge& given, DeviceStream stream);

}  // namespace seqpar
