#include "attn/linear/device/delta_segments.h"

#include <algorithm>

#include "kernels/attn/linear/delta/half/memory_sm90.h"

namespace seqpar::attn::linear {
using delta::Chunk;
using delta::Step;
using delta::Task;
namespace {

/// Chunks of segments of at most `limit` chunks that begin where sequences do; empty if there is none, or more than
/// `most`.
std::vector<int> sequenceSegments(const Chunk* chunks, int count, int limit, size_t most) {
  std::vector<int> segments;
  int begin = 0;
  while (count - begin > limit) {
    int next = begin + limit;
    while (next > begin && chunks[next].begins == 0) --next;
    if (next == begin || segments.size() + 1 == most) return {};
    segments.push_back(next - begin);
    begin = next;
  }
  segments.push_back(count - begin);
  return segments;
}

/// The same with the least `limit`.
std::vector<int> sequenceSegments(const Chunk* chunks, int count, size_t most) {
  int low = 1, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    sequenceSegments(chunks, count, middle, most).empty() ? low = middle + 1 : high = middle;
  }
  return sequenceSegments(chunks, count, high, most);
}

/// The segments with a map. `sms - chains` SMs compute the map while the others run through the first segment, in turns
/// if they do not suffice. Measured on one H200, heads of 128, 128 chunks, us: advance with 32 heads 247 with 60 chunks
/// in the first segment, 252 with 53 or 72; with 16 heads 174 with 34, 177 with 44. Retreat, next to advance: with 16
/// heads 384 with 34, 379 with 60; with 8 heads 268 with 34 or 42.
std::vector<int> segmentsOfMap(Step step, const Task& task, int64_t chains, int64_t sms) {
  constexpr double kFirstTurn = 0.75, kOtherTurns = 1, kRetreat = 1.2;  // of the time of the first segment's chunks
  const int64_t others = sms - chains;
  const delta::Segment map{0, 0, nullptr, nullptr, task.states};
  const int64_t turns = (delta::half::ctasOf(task, map) + others - 1) / others;
  const double ofFirst = (step == Step::Retreat ? kRetreat : kFirstTurn) + kOtherTurns * static_cast<double>(turns - 1);
  const auto second = static_cast<int>(task.count / (2 + ofFirst));
  return {task.count - 2 * second, second, second};
}

}  // namespace

SegmentPlan planSegments(Step step, const Task& task, const Chunk* chunks, int sms, int least) {
  if (!task.readsRows || task.transition != nullptr) return {};
  const int64_t chains = task.batch * task.heads * delta::half::stateSlices(task);
  if (2 * chains > sms) return {};
  SegmentPlan plan;
  const auto longest = [](const std::vector<int>& counts) { return *std::max_element(counts.begin(), counts.end()); };
  plan.counts =
      sequenceSegments(chunks, task.count, static_cast<size_t>(std::min<int64_t>(sms / chains, delta::kMostSegments)));
  plan.independent = true;
  const auto withMap = segmentsOfMap(step, task, chains, sms);
  if (withMap[1] >= least && withMap[0] + withMap[1] + least / 2 < longest(plan.counts)) return {withMap, false};
  if (task.count - longest(plan.counts) < least) return {};
  if (step == Step::Retreat) std::reverse(plan.counts.begin(), plan.counts.end());
  return plan;
}

}  // namespace seqpar::attn::linear
