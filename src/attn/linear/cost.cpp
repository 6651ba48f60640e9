// Cost models of the linear attention algorithms: the work of the longest shard, and the scan's model.
#include <algorithm>

#include "attn/boundary.h"
#include "attn/linear/algorithms.h"
#include "attn/linear/families/family.h"
#include "base/convert.h"

namespace seqpar::attn::linear {
namespace {

constexpr double kChunkTokens = 64;

bool hasMatrix(const Problem& p) {
  return findFamily(p.desc.family)->transition == seqparScanMatrix;
}

/// Flops per token and head of the chunk-wise matrix products: scores, values, states in and out. With a matrix as
/// transition also the system of equations of the chunk, and the states' values for its keys.
double forwardFlops(const Problem& p) {
  const auto dk = static_cast<double>(p.desc.headDim), dv = static_cast<double>(p.desc.valueDim);
  if (hasMatrix(p)) return kChunkTokens * (4 * dk + 3 * dv) + 6 * dk * dv;
  return kChunkTokens * dk + 2 * kChunkTokens * dv + 4 * dk * dv;
}

double backwardFlops(const Problem& p) {
  const auto dk = static_cast<double>(p.desc.headDim), dv = static_cast<double>(p.desc.valueDim);
  if (hasMatrix(p)) return kChunkTokens * (14 * dk + 13 * dv) + 22 * dk * dv;
  return kChunkTokens * (3 * dk + 4 * dv) + 12 * dk * dv;
}

/// Flops per token and head for the rank's map: a matrix is computed like columns of the state, in each direction.
double mapFlops(const Problem& p) {
  if (!hasMatrix(p) || p.ranks() == 1) return 0;
  const auto dk = static_cast<double>(p.desc.headDim), dv = static_cast<double>(p.desc.valueDim);
  return kChunkTokens * (3 * dk + dv) + 4 * dk * (dk + dv);
}

/// Rows of the longest shard, over all heads.
double rows(const Problem& p) {
  return static_cast<double>(p.queries.longest() * p.desc.batch * p.desc.heads);
}

double stateBytes(const Problem& p) {
  return static_cast<double>(p.desc.batch * p.desc.heads * p.desc.headDim * p.desc.valueDim) *
         static_cast<double>(bytesOf(p.wireType()));
}

/// Two passes over the tokens on hosts, of families with decays, divided by one: they read keys, values and decays
/// twice, and write and read states.
constexpr double kTwoPassesOnHosts = 1.3;

/// Maximum wait of the last rank in a relay, as a share of a pass.
constexpr double kLongestWait = 0.375;

/// The heads that other ranks compute before the last rank of a relay starts.
double headsBefore(const Problem& p) {
  return (p.ranks() - 1) * std::max(1, p.info.mostThreads);
}

double keyHeads(const Problem& p) {
  return static_cast<double>(p.desc.batch * p.desc.kvHeads);
}

/// The modeled time of one All-Scan.
double scanUs(const Problem& p, seqparScanAlgorithm_t algorithm) {
  if (p.ranks() == 1) return 0;
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = findFamily(p.desc.family)->transition;
  params.heads = p.desc.batch * p.desc.heads;
  params.dk = p.desc.headDim;
  params.dv = p.desc.valueDim;
  params.wireType = p.desc.wireType;
  params.bounded = !hasMatrix(p) || p.desc.normalize != 0 ? 1 : 0;
  params.algorithm = algorithm;
  seqparScanEstimate_t estimates[SEQPAR_SCAN_ALGORITHMS + 1];
  require(seqparAllScanPlan(&params, p.comm, estimates), "linear attention", p.comm);
  return estimates[0].modelUs;
}

/// `hidden`: the shares of the forward and backward time that overlap with the scan.
Estimate around(const Problem& p, seqparScanAlgorithm_t algorithm, double hiddenForward, double hiddenBackward) {
  Estimate estimate = estimateLocal(p);
  if (p.ranks() > 1 && !p.onDevice() && !hasMatrix(p)) estimate.forwardUs *= kTwoPassesOnHosts;
  const double map = rows(p) * mapFlops(p) / p.blockTraits().forward.flops * 1e6;
  estimate.forwardUs += map;
  if (p.training()) estimate.backwardUs += map;
  const double scan = scanUs(p, algorithm);
  const double forward = estimate.forwardUs, backward = estimate.backwardUs;
  estimate.forwardUs += std::max(0.0, scan - hiddenForward * forward);
  estimate.backwardUs += std::max(0.0, scan - hiddenBackward * backward);
  const double sent = algorithm == seqparScanLasp2 ? p.ranks() - 1 : 1;
  estimate.bytes = p.ranks() == 1 ? 0 : (p.training() ? 2 : 1) * sent * stateBytes(p);
  return estimate;
}

}  // namespace

Estimate estimateLocal(const Problem& p) {
  const double flops = p.blockTraits().forward.flops;
  return {rows(p) * forwardFlops(p) / flops * 1e6, p.training() ? rows(p) * backwardFlops(p) / flops * 1e6 : 0, 0};
}

bool relays(const Problem& p) {
  return p.ranks() > 1 && !p.onDevice() && p.desc.wireType == seqparFloat32 &&
         headsBefore(p) <= kLongestWait * keyHeads(p);
}

// Shares of the flops that need no incoming state: scores and values within chunks, and recomputed states.
Estimate estimateZeco(const Problem& p) {
  Estimate estimate = around(p, seqparScanAuto, 0.3, 0.1);
  if (!relays(p)) return estimate;
  // The forward, and with a matrix the backward, is one pass as in LOCAL; the last rank ends later.
  const Estimate local = estimateLocal(p);
  const double wait = headsBefore(p) / keyHeads(p);
  estimate.forwardUs = local.forwardUs * (1 + wait);
  if (hasMatrix(p)) estimate.backwardUs = local.backwardUs * (1 + wait);
  return estimate;
}

Estimate estimateLasp1(const Problem& p) {
  return around(p, seqparScanLasp1, 0, 0);
}

Estimate estimateLasp2(const Problem& p) {
  return around(p, seqparScanLasp2, 0.3, 0.1);
}

}  // namespace seqpar::attn::linear
