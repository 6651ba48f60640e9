// What each algorithm of the MATRIX scan should cost between GPUs that reach each other by load and store.
#pragma once

#include <vector>

#include "scan/device_cost.h"

namespace seqpar {

/// As estimateDeviceScan(), for MATRIX.
std::vector<seqparScanEstimate_t> estimateDeviceMatrixScan(const ScanProblem& problem, int positions,
                                                           const DeviceLink& link, int channels);

}  // namespace seqpar
