#include "attn/softmax/cost.h"

#include <algorithm>

#include "attn/softmax/rotation.h"

namespace seqpar::attn {

CostModel::CostModel(const Problem& problem, double flops) : problem_(problem), flops_(flops), ranks_(problem.ranks()) {
  std::vector<std::vector<TokenRun>> queries, keys;
  for (int rank = 0; rank < ranks_; ++rank) {
    queries.push_back(problem.queries.runsOf(rank));
    keys.push_back(problem.keys.runsOf(rank));
  }
  for (const auto& q : queries) {
    for (const auto& k : keys) scores_.push_back(scoresOf(rectanglesOf(q, k, problem.visibility())));
  }
}

double CostModel::blockUs(double scores, bool backward) const {
  const auto& d = problem_.desc;
  const double forward = 2.0 * scores * static_cast<double>(d.batch * d.heads * (d.headDim + d.valueDim));
  return (backward ? 2.5 : 1.0) * forward / flops_ * 1e6;
}

double CostModel::sendUs(double bytes) const {
  if (bytes == 0 || ranks_ == 1) return 0;
  return problem_.info.alphaUs + problem_.info.overheadUs + bytes / std::max(problem_.info.bandwidth, 1.0) * 1e6;
}

double CostModel::bytes(double tokens, int64_t heads, int64_t dim, seqparDataType_t type) const {
  return tokens * static_cast<double>(problem_.desc.batch * heads * dim) * static_cast<double>(bytesOf(type));
}

double CostModel::kvBytes(double tokens) const {
  const auto& d = problem_.desc;
  return bytes(tokens, d.kvHeads, d.headDim + d.valueDim, problem_.type());
}

double CostModel::kvSumBytes(double tokens) const {
  const auto& d = problem_.desc;
  return bytes(tokens, d.kvHeads, d.headDim + d.valueDim, problem_.wireType());
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

Estimate estimateLocal(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  double most = 0;
  for (int rank = 0; rank < model.ranks(); ++rank) most = std::max(most, model.scores(rank, rank));
  return {model.blockUs(most, false), model.blockUs(most, true), 0};
}

Estimate estimateRing(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto order = ringOrder(problem, problem.ranks(), false);
  const auto tokens = static_cast<double>(problem.keys.longest());
  const double kv = model.kvBytes(tokens), sums = model.kvSumBytes(tokens);
  Estimate e;
  for (int step = 0; step <= order.steps; ++step) {
    double scores = 0;
    for (int rank = 0; rank < model.ranks(); ++rank) {
      RingOrder other = order;
      other.rank = rank;
      scores = std::max(scores, model.scores(rank, other.source(step)));
    }
    const double hop = step < order.steps ? model.sendUs(kv) : 0;
    e.forwardUs += std::max(model.blockUs(scores, false), hop);
    e.backwardUs += std::max(model.blockUs(scores, true), hop + (step > 0 ? model.sendUs(sums) : 0));
  }
  if (order.steps > 0) e.backwardUs += model.sendUs(sums);
  e.bytes = order.steps * (2 * kv + sums) + (order.steps > 0 ? sums : 0);
  return e;
}

}  // namespace seqpar::attn
