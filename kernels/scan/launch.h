// Launchers of the algorithms' kernels. The table of algorithms (src/scan/registry.cpp) names the launchers; each is
// defined in its kernel's .cu. This header compiles everywhere, since the tables do.
#pragma once

#include "kernels/peers.h"
#include "kernels/scan/matrix_plan.h"
#include "kernels/scan/task.h"

namespace seqpar {

/// Launches one task of the element-wise All-Scan on `stream`, a cudaStream_t. Returns a cudaError_t.
using ScanLaunch = int(const PeerView& view, const ScanTask& task, void* stream);

/// Launches one task of the MATRIX scan on `stream`, a cudaStream_t. Requires matrixScanFits() (matrix_fits.h). Returns
/// a cudaError_t.
using MatrixLaunch = int(const PeerView& view, const MatrixScan& scan, void* stream);

}  // namespace seqpar
