// Cost model of the MATRIX scan between GPUs that reach each other by load and store. The algorithms' formulas are in
// their files.
#pragma once

#include <vector>

#include "scan/peers_model.h"

namespace seqpar {

/// Arguments of the formulas. Seconds and bytes.
struct MatrixModel {
  static constexpr double kMapRate = 0.5;    // a channel's relative rate if maps are sent; not measured
  static constexpr double kLasp1Panels = 2;  // panels in shared memory, for heads with 128 rows

  double ranks = 1, alpha = 0;
  double state = 0, map = 0;  // sent bytes: the states; the maps of all groups, each with its matrix
  double panel = 0, hop = 0;  // multiplying a panel, and all panels of a channel, by a matrix
  double chainPanel = 0;      // in CHAIN
  double panels = 0;          // per channel
  double compose = 0;         // multiplying a channel's matrices by a matrix

  double hops() const { return ranks - 1; }
};

/// An algorithm's time in seconds, excluding the time of a call.
using MatrixSeconds = double(const MatrixModel& model);

struct ScanAlgorithm;

/// True if the row's kernels support the problem's matrices among several peers with `channels` channels.
bool matrixRowFits(const ScanAlgorithm& row, const ScanProblem& problem, int channels);

/// As estimateDeviceScan(), for MATRIX.
std::vector<seqparScanEstimate_t> estimateDeviceMatrixScan(const ScanProblem& problem, int positions,
                                                           const DeviceLink& link, int channels);

}  // namespace seqpar
