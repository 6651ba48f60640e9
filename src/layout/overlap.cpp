#include "layout/overlap.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace seqpar {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// Collects patterns and joins regular sequences of them into one.
class Patterns {
 public:
  /// With `outer` false, axis 0 stays 1.
  explicit Patterns(bool outer) : outer_(outer) {}

  void add(const Overlap& pattern) {
    if (!list_.empty() && (lengthens(pattern) || repeats(pattern, 1) || (outer_ && repeats(pattern, 0)))) return;
    list_.push_back(pattern);
  }

  std::vector<Overlap> take() { return std::move(list_); }

 private:
  /// Extends the last block by an adjacent one (on both sides).
  bool lengthens(const Overlap& next) {
    Overlap& last = list_.back();
    if (last.count != kOne || next.count != kOne || last.from + last.length != next.from ||
        last.to + last.length != next.to) {
      return false;
    }
    last.length += next.length;
    return true;
  }

  /// Extends `axis` of the last pattern by one more repetition.
  bool repeats(const Overlap& next, size_t axis) {
    Overlap& last = list_.back();
    const bool alike = axis == 1 ? last.count[0] == 1 && next.count == kOne
                                 : next.count[0] == 1 && next.count[1] == last.count[1] &&
                                       (next.count[1] == 1 || (next.fromStride[1] == last.fromStride[1] &&
                                                               next.toStride[1] == last.toStride[1]));
    if (!alike || next.length != last.length) return false;
    const int64_t fromStep = next.from - last.from - (last.count[axis] - 1) * last.fromStride[axis];
    const int64_t toStep = next.to - last.to - (last.count[axis] - 1) * last.toStride[axis];
    const bool first = last.count[axis] == 1;
    if (!first && (fromStep != last.fromStride[axis] || toStep != last.toStride[axis])) return false;
    last.fromStride[axis] = fromStep;
    last.toStride[axis] = toStep;
    ++last.count[axis];
    return true;
  }

  static constexpr std::array<int64_t, 2> kOne{1, 1};
  bool outer_;
  std::vector<Overlap> list_;
};

/// The first token of the block of `run` that contains `global`, otherwise of the next block; kNever if there is none.
int64_t blockAt(const seqparLayoutRun_t& run, int64_t global) {
  if (global < run.global + run.length) return run.global;
  if (run.count == 1) return kNever;
  const int64_t index = (global - run.global - run.length) / run.stride + 1;
  return index < run.count ? run.global + index * run.stride : kNever;
}

/// Adds the tokens common to two runs within the given token range, block by block.
void addBlocks(const seqparLayoutRun_t& a, const seqparLayoutRun_t& b, int64_t begin, int64_t end, Patterns& out) {
  for (int64_t at = begin; at < end;) {
    const int64_t blockA = blockAt(a, at);
    const int64_t blockB = blockAt(b, at);
    if (blockA == kNever || blockB == kNever) return;
    const int64_t low = std::max({blockA, blockB, at});
    const int64_t high = std::min({blockA + a.length, blockB + b.length, end});
    if (low < high) out.add({localOf(a, low), localOf(b, low), high - low});
    at = std::max(low, high);
  }
}

/// The period in tokens after which the pair of runs repeats; kNever if it is too long to matter.
int64_t commonPeriod(const seqparLayoutRun_t& a, const seqparLayoutRun_t& b) {
  if (a.count == 1) return b.count == 1 ? kNever : b.stride;
  if (b.count == 1) return a.stride;
  int64_t period = 0;
  return __builtin_mul_overflow(a.stride / std::gcd(a.stride, b.stride), b.stride, &period) ? kNever : period;
}

/// addBlocks() of all tokens, with whole periods added at once.
void addRuns(const seqparLayoutRun_t& a, const seqparLayoutRun_t& b, Patterns& out) {
  const int64_t begin = std::max(a.global, b.global);
  const int64_t end = std::min(globalEnd(a), globalEnd(b));
  // A period that starts with a block cuts no block.
  const auto& regular = a.count > 1 ? a : b;
  const int64_t aligned = begin >= end ? kNever : blockAt(regular, begin);
  const int64_t start = aligned < begin ? blockAt(regular, aligned + regular.length) : aligned;
  const int64_t period = commonPeriod(a, b);
  const int64_t periods = start >= end || period == kNever ? 0 : (end - start) / period;
  if (periods < 2) return addBlocks(a, b, begin, end, out);

  addBlocks(a, b, begin, start, out);
  Patterns once(false);
  addBlocks(a, b, start, start + period, once);
  const auto steps = [&](const seqparLayoutRun_t& run) {
    return run.count == 1 ? period : period / run.stride * run.length;
  };
  for (Overlap pattern : once.take()) {
    // A repeated single block uses one axis and leaves the other to later patterns.
    const size_t axis = pattern.count[1] == 1 ? 1 : 0;
    pattern.count[axis] = periods;
    pattern.fromStride[axis] = steps(a);
    pattern.toStride[axis] = steps(b);
    out.add(pattern);
  }
  addBlocks(a, b, start + periods * period, end, out);
}

}  // namespace

std::vector<Overlap> overlaps(std::span<const seqparLayoutRun_t> from, std::span<const seqparLayoutRun_t> to) {
  Patterns out(true);
  size_t a = 0;
  size_t b = 0;
  while (a < from.size() && b < to.size()) {
    Patterns pair(false);
    addRuns(from[a], to[b], pair);
    for (const auto& pattern : pair.take()) out.add(pattern);
    ++(globalEnd(from[a]) < globalEnd(to[b]) ? a : b);
  }
  return out.take();
}

}  // namespace seqpar
