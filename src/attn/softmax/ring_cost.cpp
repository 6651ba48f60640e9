#include "attn/softmax/ring_cost.h"

#include <algorithm>
#include <vector>

#include "attn/problem/needed.h"
#include "attn/softmax/ring.h"

namespace seqpar::attn {
namespace {

/// The times of a step's transfers. If inner rings are nodes, inputs travel to the next node during all steps of the
/// inner ring; sums do so in one step.
struct Hops {
  Hops(const CostModel& model, const RingTrip& trip) : inner(trip.inner) {
    const auto& problem = model.problem();
    const bool windowsAreNodes = problem.info.nodes > 1 && inner * problem.info.nodes == problem.ranks();
    if (!windowsAreNodes) inner = 1;
    inputs = model.sendUs(trip.inputBytes) / inner;
    sums = inside = model.sendUs(trip.sumBytes);
    if (!windowsAreNodes) return;
    inputs = std::max(model.ringUs(trip.inputBytes, inner, 1), inputs);
    inside = model.ringUs(trip.sumBytes, inner, 1);
  }
  double sumsUs(int step) const { return step % inner == 0 ? sums : inside; }
  int inner;
  double inputs = 0, sums = 0, inside = 0;
};

/// Time to add partial results: partial outputs or gradients of the rank's queries, two at a time in the tensors' type,
/// and the sums of the keys' gradients at every step.
double addingUs(const CostModel& model, const RingTrip& trip, int steps) {
  if (steps == 0) return 0;
  const auto& problem = model.problem();
  const double own = model.qBytes(mostSent(problem, true)), keys = model.kvBytes(mostSent(problem, false));
  const double atOnce = own * (steps + 2), inMemory = own * 4 * std::max(0, steps - 2);
  const double ofKeys = trip.backward ? keys * (4 + 5 * std::max(0, steps - 1)) : 0;
  return model.memoryUs(atOnce + inMemory + ofKeys);
}

/// The time of a rank's block of a step.
double blockUs(const CostModel& model, const RingTrip& trip, const RingOrder& order, int rank, int step,
               const CostModel::Shape& shape) {
  const int source = order.sourceOf(rank, step);
  return model.blockUs(trip.queries ? model.scores(source, rank) : model.scores(rank, source), trip.backward, shape);
}

/// The work of a rank's processor on hosts in a step: ranks of a node map each other's rings, so bytes are copied once;
/// sums are added.
double workUs(const CostModel& model, const RingTrip& trip, const RingOrder& order, int step) {
  const double copied = step < order.steps ? trip.inputBytes / 2 : 0;
  const double added = step > order.firstSum() ? trip.sumBytes * 1.5 : 0;
  return model.copyUs(copied + added);
}

/// A step of a rank waits for the tensors that another rank sends from the start of its previous step on, and for the
/// sums that this rank sends at that step's end.
double tripUs(const CostModel& model, const RingTrip& trip) {
  const auto order = ringOrder(model.problem(), trip.inner, trip.queries);
  const auto ranks = static_cast<size_t>(model.ranks());
  const Hops hops(model, trip);
  const auto own = model.ownShape(), other = model.otherShape();
  std::vector<double> start(ranks, 0), end(ranks, 0), late(ranks, 0);
  for (int step = 0; step <= order.steps; ++step) {
    const auto startBefore = start, endBefore = end;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const int at = static_cast<int>(rank);
      const double block =
          blockUs(model, trip, order, at, step, step == 0 ? own : other) + workUs(model, trip, order, step);
      if (step == 0) {
        if (order.steps > 0) late[rank] = trip.late * block;
        end[rank] = block - late[rank];
        continue;
      }
      const auto from = static_cast<size_t>(order.holderOf(order.sourceOf(at, step), step - 1));
      const bool withSums = step > order.firstSum();
      start[rank] = std::max(endBefore[rank], startBefore[from] + hops.inputs);
      end[rank] = std::max(start[rank] + block, withSums ? endBefore[from] + hops.sumsUs(step) : 0);
    }
  }
  double us = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto holder = static_cast<size_t>(order.holderOf(static_cast<int>(rank), order.steps));
    us = std::max({us, end[rank] + late[rank], order.steps > 0 ? end[holder] + hops.sums : 0});
  }
  return us + addingUs(model, trip, order.steps);
}

}  // namespace

double mostSent(const Problem& problem, bool queries) {
  int64_t most = 0;
  for (const auto& ranges : problem.seenByOthers(queries)) most = std::max(most, tokensOf(ranges));
  return static_cast<double>(most);
}

double tripBytes(const CostModel& model, const RingTrip& trip) {
  const auto& problem = model.problem();
  const auto order = ringOrder(problem, trip.inner, trip.queries);
  if (order.steps == 0) return 0;
  double all = 0;
  for (const auto& ranges : problem.seenByOthers(trip.queries)) all += static_cast<double>(tokensOf(ranges));
  const double mean = all / (mostSent(problem, trip.queries) * problem.ranks());
  return mean * (order.steps * trip.inputBytes + (order.steps - order.firstSum() + 1) * trip.sumBytes);
}

Estimate estimateTrips(const CostModel& model, const RingTrip& forward, const RingTrip& backward) {
  return {tripUs(model, forward), tripUs(model, backward), tripBytes(model, forward) + tripBytes(model, backward)};
}

RingTrip keysForward(const CostModel& model, int inner) {
  const double tokens = mostSent(model.problem(), false);
  return {inner, false, false, model.kvBytes(tokens), 0};
}

RingTrip keysBackward(const CostModel& model, int inner) {
  const auto& p = model.problem();
  const double tokens = mostSent(p, false);
  const auto type = ringSumType(p, ringOrder(p, inner, false));
  return {inner, false, true, model.kvBytes(tokens), model.kvBytes(tokens, type), lateShareOfRing(p)};
}

RingTrip queriesBackward(const CostModel& model) {
  const auto& p = model.problem();
  const double tokens = mostSent(p, true);
  return {p.ranks(), true, true, model.qBytes(tokens) + model.outBytes(tokens) + model.rowBytes(tokens),
          model.bytes(tokens, p.desc.heads, p.desc.headDim, p.wireType())};
}

}  // namespace seqpar::attn
