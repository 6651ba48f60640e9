// What the MATRIX scan should cost between GPUs that reach each other by load and store. The algorithms' formulas are
// in their files.
#pragma once

#include <vector>

#include "scan/peers_model.h"

namespace seqpar {

/// What the formulas are given. Seconds and bytes.
struct MatrixModel {
  static constexpr double kMapRate = 0.5;    // of a channel's rate where maps travel; not measured
  static constexpr double kLasp1Panels = 2;  // that shared memory holds of heads with 128 rows

  double ranks = 1, alpha = 0;
  double state = 0, map = 0;  // sent: the states; what the maps of all groups are, each with its matrix
  double panel = 0, hop = 0;  // through a matrix: a panel, and all that a channel has of them
  double chainPanel = 0;      // in CHAIN
  double panels = 0;          // of a channel
  double compose = 0;         // a channel's matrices through a matrix

  double hops() const { return ranks - 1; }
};

/// An algorithm's time in seconds, less that of a call.
using MatrixSeconds = double(const MatrixModel& model);

struct ScanAlgorithm;

/// True if the row's kernels can do the problem's matrices among several peers with so many channels.
bool matrixRowFits(const ScanAlgorithm& row, const ScanProblem& problem, int channels);

/// As estimateDeviceScan(), for MATRIX.
std::vector<seqparScanEstimate_t> estimateDeviceMatrixScan(const ScanProblem& problem, int positions,
                                                           const DeviceLink& link, int channels);

}  // namespace seqpar
