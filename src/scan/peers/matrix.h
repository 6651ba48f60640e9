// All-Scan with a matrix a head, on the GPUs of peers.
#pragma once

#include <span>

#include "device/group.h"
#include "kernels/scan/matrix.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// matrixScanFits() (kernels/scan/matrix.h) of the problem.
bool deviceMatrixFits(seqparScanAlgorithm_t algorithm, const ScanProblem& problem, int channels);

/// Collective over the peers: launches the scan of `problem`, whose op is MATRIX, on `stream`. order[p] is the number
/// among the peers of the rank at position p. One launch a call, for up to kMatrixHeads heads; more heads are several
/// launches. The device is current. Throws InvalidUsage where deviceMatrixFits() is false.
void launchDeviceMatrixScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                            const seqparScanEstimate_t& choice, DeviceStream stream);

}  // namespace seqpar
