// The merging movements of a mesh on GPUs.
#pragma once

#include "device/group.h"
#include "mesh/steps.h"

namespace seqpar {

/// reduceOutputs() and reduceSums(), enqueued on `stream`; to be called from DeviceGroup::enqueue().
void reduceOutputsOnDevice(DeviceGroup& group, const OutputStep& step, DeviceStream stream);
void reduceSumsOnDevice(DeviceGroup& group, const SumStep& step, DeviceStream stream);

}  // namespace seqpar
