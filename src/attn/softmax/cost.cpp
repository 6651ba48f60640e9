#include "attn/softmax/cost.h"

#include <algorithm>
#include <cmath>

namespace seqpar::attn {

namespace {

constexpr double kFurtherKernelUs = 5;  // of a GPU: a launch, and the end of the kernel before
/// Links of hosts are measured with blocks that stay in the caches; tensors do not.
constexpr double kUncached = 1.5;

CostModel::Shape shapeOfRectangles(const std::vector<Rectangle>& rectangles) {
  CostModel::Shape shape{1, static_cast<double>(rectangles.size())};
  for (const auto& each : rectangles) {
    const double area = static_cast<double>(each.rows) * static_cast<double>(each.columns);
    if (static_cast<double>(each.scores()) <= 0.75 * area) shape.edgeRows += static_cast<double>(each.rows);
    shape.sides += std::sqrt(area);
  }
  return shape;
}

}  // namespace

double CostModel::blockUs(double scores, bool backward, const Shape& shape) const {
  const auto& d = problem_.desc;
  if (scores == 0) return 0;
  const auto heads = static_cast<double>(d.batch * d.heads);
  const auto& pass = backward ? block_.backward : block_.forward;
  const double edges = pass.edgeScores * (problem_.onDevice() ? std::sqrt(32 / heads) : 1) * shape.edgeRows;
  const double all = scores + edges + pass.sideScores * shape.sides;
  const double forward = 2.0 * all * heads * static_cast<double>(d.headDim + d.valueDim);
  const double further = problem_.onDevice() ? kFurtherKernelUs * std::max(0.0, shape.kernels - shape.blocks) : 0;
  return shape.blocks * pass.startUs + further + (backward ? 2.5 : 1.0) * forward / pass.flops * 1e6;
}

CostModel::Shape CostModel::Shape::with(const Shape& other, double count) const {
  return {blocks + count * other.blocks, kernels + count * other.kernels, edgeRows + count * other.edgeRows,
          sides + count * other.sides};
}

CostModel::Shape CostModel::ofHeads(Shape shape, double share) const {
  shape.edgeRows *= problem_.onDevice() ? std::sqrt(share) : share;
  shape.sides *= share;
  return shape;
}

CostModel::Shape CostModel::shapeOf(std::span<const TokenRun> queries, std::span<const TokenRun> keys) const {
  return shapeOfRectangles(rectanglesOf(queries, keys, problem_.visibility()));
}

CostModel::Shape CostModel::ownShape() const {
  return shapeOf(problem_.queries.runsOf(ranks_ / 2), problem_.keys.runsOf(ranks_ / 2));
}

CostModel::Shape CostModel::otherShape() const {
  return shapeOf(problem_.queries.runsOf(ranks_ / 2), problem_.keys.runsOf(std::max(0, ranks_ / 2 - 1)));
}

CostModel::Shape CostModel::gatheredShape() const {
  const std::vector<TokenRun> all{{0, 0, problem_.keys.tokens(), 1}};
  return shapeOf(problem_.queries.runsOf(ranks_ / 2), all);
}

double CostModel::sendUs(double bytes) const {
  return sendUs(bytes, 1);
}

double CostModel::sendUs(double bytes, int ranks) const {
  if (bytes == 0 || ranks_ == 1) return 0;
  const double start = problem_.info.alphaUs + problem_.info.overheadUs;
  const double us = bytes / std::max(problem_.info.bandwidth, 1.0) * 1e6;
  if (problem_.onDevice()) return start + us;
  if (problem_.info.nodes == 1) return start + copyUs(bytes);
  return start + us * std::clamp(ranks, 1, std::max(1, problem_.plan.ranksPerNode)) + copyUs(bytes);
}

double CostModel::copyUs(double bytes) const {
  return problem_.onDevice() ? 0 : kUncached * bytes / std::max(problem_.nodeLink.bandwidth, 1.0) * 1e6;
}

double CostModel::groupUs(double bytes, int size, int stride) const {
  if (bytes == 0 || size <= 1) return 0;
  const auto& node = problem_.nodeLink;
  const int inside = std::clamp(problem_.plan.ranksPerNode / stride, 1, size);  // of the group, on one node
  const double share = problem_.info.nodes == 1 ? 1 : static_cast<double>(inside - 1) / (size - 1);
  const double inNode =
      problem_.onDevice() ? share * bytes / std::max(node.bandwidth, 1.0) * 1e6 : copyUs(share * bytes);
  const double local = share == 0 ? 0 : node.alphaUs + node.overheadUs + inNode;
  const double remote = share == 1 ? 0 : sendUs((1 - share) * bytes, problem_.plan.ranksPerNode);
  return problem_.onDevice() ? std::max(local, remote) : local + remote;
}

double CostModel::ringUs(double bytes, int size, int stride) const {
  const bool inNode = problem_.info.nodes == 1 || size * stride <= problem_.plan.ranksPerNode;
  return inNode ? groupUs(bytes, std::min(size, 2), stride) : sendUs(bytes, stride);
}

double CostModel::overlapUs(double blocks, double transfers, double bytes) const {
  if (!block_.transfersTakeSms) return std::max(blocks + copyUs(bytes), transfers);
  if (problem_.info.nodes == 1) return blocks + transfers;
  return std::max(blocks + block_.smsOfTransfers * std::min(blocks, transfers), transfers);
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
