#include "attn/softmax/cost.h"

#include <algorithm>

#include "attn/softmax/algorithms.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {

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

namespace {

/// Tensors that go round while blocks are computed, and sums one hop behind.
struct Trip {
  int inner;     ///< ranks of a window
  bool queries;  ///< that travel; else keys
  bool backward;
  double inputBytes, sumBytes;
};

/// Where the windows of a double ring are nodes, tensors go on to the next node during all steps of a window; the
/// measured bandwidth is that between nodes.
double hopsInFlight(const Problem& problem, int inner) {
  const bool windowsAreNodes = problem.info.nodes > 1 && inner * problem.info.nodes == problem.ranks();
  return windowsAreNodes ? inner : 1;
}

double tripUs(const CostModel& model, const Trip& trip) {
  const auto order = ringOrder(model.problem(), trip.inner, trip.queries);
  const double share = 1 / hopsInFlight(model.problem(), trip.inner);
  double us = 0;
  for (int step = 0; step <= order.steps; ++step) {
    double scores = 0;
    for (int rank = 0; rank < model.ranks(); ++rank) {
      RingOrder other = order;
      other.rank = rank;
      const int source = other.source(step);
      scores = std::max(scores, trip.queries ? model.scores(source, rank) : model.scores(rank, source));
    }
    const double inputs = step < order.steps ? model.sendUs(trip.inputBytes) * share : 0;
    const double sums = step > 0 ? model.sendUs(trip.sumBytes) : 0;
    us += std::max(model.blockUs(scores, trip.backward), inputs + sums);
  }
  return us + (order.steps > 0 ? model.sendUs(trip.sumBytes) : 0);
}

double tripBytes(const CostModel& model, const Trip& trip) {
  const int steps = ringOrder(model.problem(), trip.inner, trip.queries).steps;
  return steps * trip.inputBytes + (steps > 0 ? steps + 1 : 0) * trip.sumBytes;
}

Estimate estimateTrips(const CostModel& model, const Trip& forward, const Trip& backward) {
  return {tripUs(model, forward), tripUs(model, backward), tripBytes(model, forward) + tripBytes(model, backward)};
}

Trip keysForward(const CostModel& model, int inner) {
  const auto tokens = static_cast<double>(model.problem().keys.longest());
  return {inner, false, false, model.kvBytes(tokens), 0};
}

Trip keysBackward(const CostModel& model, int inner) {
  const auto tokens = static_cast<double>(model.problem().keys.longest());
  return {inner, false, true, model.kvBytes(tokens), model.kvSumBytes(tokens)};
}

Trip queriesBackward(const CostModel& model) {
  const auto& p = model.problem();
  const auto tokens = static_cast<double>(p.queries.longest());
  const double rows = 2 * model.bytes(tokens, p.desc.heads, 1, seqparFloat32);
  return {p.ranks(), true, true, model.qBytes(tokens) + model.outBytes(tokens) + rows,
          model.bytes(tokens, p.desc.heads, p.desc.headDim, p.wireType())};
}

}  // namespace

Estimate estimateRing(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  return estimateTrips(model, keysForward(model, problem.ranks()), keysBackward(model, problem.ranks()));
}

Estimate estimateDoubleRing(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const int inner = windowOf(problem);
  return estimateTrips(model, keysForward(model, inner), keysBackward(model, inner));
}

Estimate estimateBurst(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  return estimateTrips(model, keysForward(model, problem.ranks()), queriesBackward(model));
}

Estimate estimateRingPassQ(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const auto tokens = static_cast<double>(problem.queries.longest());
  const auto& d = problem.desc;
  const Trip forward{problem.ranks(), true, false, model.qBytes(tokens),
                     model.bytes(tokens, d.heads, d.valueDim + 1, seqparFloat32)};
  return estimateTrips(model, forward, queriesBackward(model));
}

Estimate estimateAllGatherKv(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const int ranks = problem.ranks();
  const double leaves = ranks > 1 ? static_cast<double>(ranks - 1) / ranks : 0;
  const auto tokens = leaves * static_cast<double>(problem.keys.tokens());
  const double kv = model.kvBytes(tokens), sums = model.kvSumBytes(tokens);
  const auto slices = static_cast<double>(slicesOfHeads(problem));
  const double gather = model.sendUs(kv / slices), scatter = model.sendUs(sums / slices);
  const double forward = model.blockUs(model.mostScores(), false), backward = model.blockUs(model.mostScores(), true);
  return {gather + std::max(forward, (slices - 1) * gather),
          gather + std::max(backward, (slices - 1) * (gather + scatter)) + scatter, 2 * kv + sums};
}

Estimate estimateUlysses(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const int ranks = problem.ranks();
  const auto& d = problem.desc;
  const double leaves = static_cast<double>(ranks - 1) / ranks;
  const auto queries = static_cast<double>(problem.queries.longest()),
             keys = static_cast<double>(problem.keys.longest());
  // Where there are fewer key heads than ranks, heads are copied.
  const double copies = std::max(1.0, static_cast<double>(ranks) / static_cast<double>(d.kvHeads));
  const double q = leaves * model.qBytes(queries), out = leaves * model.outBytes(queries);
  const double kv = leaves * copies * model.kvBytes(keys), sums = leaves * copies * model.kvSumBytes(keys);
  double scores = 0;
  for (int rank = 0; rank < ranks; ++rank) scores += model.scoresOfRank(rank);
  const int64_t headsOfBusiest = (d.heads + ranks - 1) / ranks;
  const double mine = scores * static_cast<double>(headsOfBusiest) / static_cast<double>(d.heads);
  return {model.blockUs(mine, false) + model.sendUs(q) + model.sendUs(kv) + model.sendUs(out),
          model.blockUs(mine, true) + 2 * model.sendUs(q) + model.sendUs(kv) + model.sendUs(out) + model.sendUs(sums),
          3 * q + 2 * kv + 2 * out + sums};
}

}  // namespace seqpar::attn
