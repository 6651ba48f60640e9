#include "scan/peers_matrix_model.h"

#include <cmath>

#include "base/convert.h"
#include "kernels/scan/matrix_fits.h"
#include "scan/cost.h"

namespace seqpar {
namespace {

constexpr double kCall = 4.0e-6;         // a kernel that loads its matrices first
constexpr double kChannelRate = 1.3e11;  // fp32 multiply-adds of a channel per second; measured on an H200
constexpr double kTeamsRate = 2.2e11;    // the same for the kernels for usual heads, in CHAIN

/// Heads of the sizes that have specialized kernels.
bool areUsual(const ScanProblem& problem) {
  return (problem.dk == 64 || problem.dk == 128) && problem.dv % 16 == 0 && problem.stateType == seqparFloat32 &&
         problem.wireType == seqparFloat32;
}

}  // namespace

bool matrixRowFits(const ScanAlgorithm& row, const ScanProblem& problem, int channels) {
  if (row.matrix.seconds == nullptr) return false;
  return matrixScanFits(row.matrix.matrices, problem.dk, problem.wireType, channels) ||
         (row.matrix.large && matrixPanelFits(problem.dk));
}

std::vector<seqparScanEstimate_t> estimateDeviceMatrixScan(const ScanProblem& problem, int positions,
                                                           const DeviceLink& link, int channels) {
  const auto heads = static_cast<double>(problem.heads);
  const auto dk = static_cast<double>(problem.dk);
  const double panels = heads * std::ceil(static_cast<double>(problem.dv) / kPanelColumns);
  const double used = std::min<double>(std::min(channels, kMostMatrixChannels), panels);
  const double perByte = link.bytesPerSecond > 0 ? 1 / link.bytesPerSecond : 0;
  MatrixModel model;
  model.ranks = positions;
  model.alpha = link.alpha;
  model.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType)) * perByte;
  // A group has few panels per matrix: at worst one.
  model.map = model.state + panels * dk * dk * sizeof(float) * perByte;
  model.panels = std::ceil(panels / used);
  model.panel = 2 * dk * dk * kPanelColumns / kChannelRate;
  model.chainPanel = areUsual(problem) ? model.panel * kChannelRate / kTeamsRate : model.panel;
  model.hop = model.panels * model.panel;
  model.compose = model.panels * std::ceil(dk / kPanelColumns) * model.panel;

  return estimateAlgorithms(
      {},
      [&](const ScanAlgorithm& row) {
        return positions == 1 ? row.matrix.seconds != nullptr : matrixRowFits(row, problem, channels);
      },
      [&](const ScanAlgorithm& row, double) { return positions == 1 ? 0 : kCall + row.matrix.seconds(model); });
}

}  // namespace seqpar
