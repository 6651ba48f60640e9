#include "attn/softmax/cost.h"

#include <algorithm>

namespace seqpar::attn {

double CostModel::blockUs(double scores, bool backward) const {
  const auto& d = problem_.desc;
  const double forward = 2.0 * scores * static_cast<double>(d.batch * d.heads * (d.headDim + d.valueDim));
  return (backward ? 2.5 : 1.0) * forward / block_.flops * 1e6;
}

double CostModel::sendUs(double bytes) const {
  if (bytes == 0 || ranks_ == 1) return 0;
  return problem_.info.alphaUs + problem_.info.overheadUs + bytes / std::max(problem_.info.bandwidth, 1.0) * 1e6;
}

double CostModel::overlapUs(double blocks, double transfers) const {
  const bool kernels = block_.transfersTakeSms && problem_.info.nodes == 1;
  return kernels ? blocks + transfers : std::max(blocks, transfers);
}

double CostModel::memoryUs(double bytes) const {
  return block_.addBandwidth > 0 ? bytes / block_.addBandwidth * 1e6 : 0;
}

double CostModel::bytes(double tokens, int64_t heads, int64_t dim, seqparDataType_t type) const {
  return tokens * static_cast<double>(problem_.desc.batch * heads * dim) * static_cast<double>(bytesOf(type));
}

double CostModel::kvBytes(double tokens, seqparDataType_t type) const {
  const auto& d = problem_.desc;
  return bytes(tokens, d.kvHeads, d.headDim + d.valueDim, type);
}

double CostModel::kvBytes(double tokens) const {
  return kvBytes(tokens, problem_.type());
}

double CostModel::kvSumBytes(double tokens) const {
  return kvBytes(tokens, problem_.wireType());
}

double CostModel::rowBytes(double tokens) const {
  const double row = bytes(tokens, problem_.desc.heads, 1, seqparFloat32);
  return row + (block_.readsOut ? outBytes(tokens) : row);
}

double CostModel::qBytes(double tokens) const {
  return bytes(tokens, problem_.desc.heads, problem_.desc.headDim, problem_.type());
}

double CostModel::outBytes(double tokens) const {
  return bytes(tokens, problem_.desc.heads, problem_.desc.valueDim, problem_.type());
}

double CostModel::scoresOfRank(int queryRank) const {
  double sum = 0;
  for (int k = 0; k < ranks_; ++k) sum += scores(queryRank, k);
  return sum;
}

double CostModel::mostScores() const {
  double most = 0;
  for (int q = 0; q < ranks_; ++q) most = std::max(most, scoresOfRank(q));
  return most;
}

}  // namespace seqpar::attn
