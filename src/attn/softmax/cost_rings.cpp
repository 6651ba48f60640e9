// What algorithms take in which tensors go round the ranks.
#include <algorithm>

#include "attn/softmax/algorithms.h"
#include "attn/softmax/cost.h"
#include "attn/softmax/ring.h"

namespace seqpar::attn {
namespace {

/// Tensors that go round while blocks are computed, and sums one hop behind.
struct Trip {
  int inner = 1;         ///< ranks of a window
  bool queries = false;  ///< that travel; else keys
  bool backward = false;
  double inputBytes = 0, sumBytes = 0;
  double late = 0;  ///< of the first block, the share that is computed while sums go home
};

/// Where the windows of a double ring are nodes, tensors go on to the next node during all steps of a window; the
/// measured bandwidth is that between nodes.
double hopsInFlight(const Problem& problem, int inner) {
  const bool windowsAreNodes = problem.info.nodes > 1 && inner * problem.info.nodes == problem.ranks();
  return windowsAreNodes ? inner : 1;
}

/// The most tokens that a rank sends round.
double mostTravelling(const Problem& problem, bool queries) {
  int64_t most = 0;
  for (const auto& range : problem.seenByOthers(queries)) most = std::max(most, range.count);
  return static_cast<double>(most);
}

/// What a rank adds up, of tokens that other ranks see or that see others': partial outputs or gradients of its
/// queries, which wait by twos in the tensors' type, and sums of keys' gradients at every step.
double addingUs(const CostModel& model, const Trip& trip, int steps) {
  if (steps == 0) return 0;
  const auto& problem = model.problem();
  const double own = model.qBytes(mostTravelling(problem, true)), keys = model.kvBytes(mostTravelling(problem, false));
  const double atOnce = own * (steps + 2), inMemory = own * 4 * std::max(0, steps - 2);
  const double ofKeys = trip.backward ? keys * (4 + 5 * std::max(0, steps - 1)) : 0;
  return model.memoryUs(atOnce + inMemory + ofKeys);
}

double tripUs(const CostModel& model, const Trip& trip) {
  const auto order = ringOrder(model.problem(), trip.inner, trip.queries);
  const double share = 1 / hopsInFlight(model.problem(), trip.inner);
  double us = 0, late = 0;
  for (int step = 0; step <= order.steps; ++step) {
    double scores = 0;
    for (int rank = 0; rank < model.ranks(); ++rank) {
      RingOrder other = order;
      other.rank = rank;
      const int source = other.source(step);
      scores = std::max(scores, trip.queries ? model.scores(source, rank) : model.scores(rank, source));
    }
    const double inputs = step < order.steps ? model.sendUs(trip.inputBytes) * share : 0;
    const double sums = step > order.firstSum() ? model.sendUs(trip.sumBytes) : 0;
    const double block = model.blockUs(scores, trip.backward);
    if (step == 0 && order.steps > 0) late = trip.late * block;
    us += std::max(block - (step == 0 ? late : 0), inputs + sums);
  }
  return us + std::max(late, order.steps > 0 ? model.sendUs(trip.sumBytes) : 0) + addingUs(model, trip, order.steps);
}

/// The mean of the ranks: some may have nothing that others see.
double tripBytes(const CostModel& model, const Trip& trip) {
  const auto& problem = model.problem();
  const auto order = ringOrder(problem, trip.inner, trip.queries);
  if (order.steps == 0) return 0;
  double all = 0;
  for (const auto& range : problem.seenByOthers(trip.queries)) all += static_cast<double>(range.count);
  const double mean = all / (mostTravelling(problem, trip.queries) * problem.ranks());
  return mean * (order.steps * trip.inputBytes + (order.steps - order.firstSum() + 1) * trip.sumBytes);
}

Estimate estimateTrips(const CostModel& model, const Trip& forward, const Trip& backward) {
  return {tripUs(model, forward), tripUs(model, backward), tripBytes(model, forward) + tripBytes(model, backward)};
}

Trip keysForward(const CostModel& model, int inner) {
  const double tokens = mostTravelling(model.problem(), false);
  return {inner, false, false, model.kvBytes(tokens), 0};
}

Trip keysBackward(const CostModel& model, int inner) {
  const auto& p = model.problem();
  const double tokens = mostTravelling(p, false);
  const auto type = ringSumType(p, ringOrder(p, inner, false));
  return {inner, false, true, model.kvBytes(tokens), model.kvBytes(tokens, type), lateShareOfRing(p)};
}

Trip queriesBackward(const CostModel& model) {
  const auto& p = model.problem();
  const double tokens = mostTravelling(p, true);
  return {p.ranks(), true, true, model.qBytes(tokens) + model.outBytes(tokens) + model.rowBytes(tokens),
          model.bytes(tokens, p.desc.heads, p.desc.headDim, p.wireType())};
}

}  // namespace

Estimate estimateRing(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  return estimateTrips(model, keysForward(model, problem.ranks()), keysBackward(model, problem.ranks()));
}

Estimate estimateRingSelfAttention(const Problem& problem, double flops) {
  const CostModel model(problem, flops);
  const double tokens = mostTravelling(problem, false);
  const double keys = model.bytes(tokens, problem.desc.kvHeads, problem.desc.headDim, problem.type());
  // Nothing is computed beside the keys.
  const Trip alone{problem.ranks(), false, false, keys};
  const double keysUs =
      ringOrder(problem, problem.ranks(), false).steps * (model.sendUs(keys) + model.memoryUs(2 * keys));
  Trip forward = keysForward(model, problem.ranks()), backward = keysBackward(model, problem.ranks());
  forward.inputBytes -= keys;
  backward.inputBytes -= keys;
  backward.late = 0;
  auto estimate = estimateTrips(model, forward, backward);
  estimate.forwardUs += keysUs;
  estimate.backwardUs += keysUs;
  estimate.bytes += 2 * tripBytes(model, alone);
  return estimate;
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
  const double tokens = mostTravelling(problem, true);
  const auto& d = problem.desc;
  const Trip forward{problem.ranks(), true, false, model.qBytes(tokens),
                     model.bytes(tokens, d.heads, d.valueDim + 1, seqparFloat32)};
  return estimateTrips(model, forward, queriesBackward(model));
}

}  // namespace seqpar::attn
