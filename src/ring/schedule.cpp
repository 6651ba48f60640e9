#include "ring/schedule.h"

#include <algorithm>
#include <utility>

namespace seqpar {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kLeastSlice = size_t{64} << 10;
constexpr int kNoSet = -1;

int modulo(int value, int size) {
  return (value % size + size) % size;
}

/// The place `windows` windows and `numbers` positions further in the ring's direction.
int moved(const RingForm& form, int place, int windows, int numbers) {
  const int sign = form.reverse ? -1 : 1;
  const int window = modulo(place / form.inner + sign * windows, form.places / form.inner);
  return window * form.inner + modulo(place % form.inner + sign * numbers, form.inner);
}

/// Computes one place's steps; tracks which sets of buffers contain tensors that are still needed.
class Maker {
 public:
  Maker(const RingForm& form, int place) : form_(form), place_(place) {}

  RingSchedule make() {
    const bool ahead = form_.unchanged && form_.inner > 1 && form_.inner < form_.places && form_.steps >= form_.inner;
    for (int step = 0; step < form_.steps; ++step) {
      RingStep& made = schedule_.steps.emplace_back();
      ahead ? addAhead(made, step) : addPlain(made, step);
      made.current = current_;
    }
    return std::move(schedule_);
  }

 private:
  /// All tensors advance by one position; with the last step of a window also to the next window.
  void addPlain(RingStep& into, int step) {
    const int windows = step % form_.inner == form_.inner - 1 ? 1 : 0;
    if (form_.places == 1) return;
    const int arrival = freeSet();
    add(into, windows, 1, step, step + 1, current_, arrival);
    current_ = arrival;
  }

  /// The window's first tensors are sent to the next window, one slice per step, concurrently with the inner ring,
  /// which has one step less.
  void addAhead(RingStep& into, int step) {
    const int number = step % form_.inner;
    const int begin = step - number;
    const int next = begin + form_.inner;
    const bool leaves = next <= form_.steps;
    if (number == 0) {
      first_ = current_;
      if (leaves) next_ = freeSet();
    }
    int arrival = next_;
    if (number < form_.inner - 1) {
      arrival = freeSet();
      add(into, 0, 1, step, step + 1, current_, arrival);
    }
    if (leaves) {
      add(into, 1, 0, begin, next, first_, next_);
      into.moves.back().slice = number;
      into.moves.back().slices = form_.inner;
    }
    current_ = arrival;
    if (number == form_.inner - 1) first_ = next_ = kNoSet;
  }

  void add(RingStep& into, int windows, int numbers, int sentStep, int receivedStep, int sendSet, int receiveSet) {
    RingMove move;
    move.to = moved(form_, place_, windows, numbers);
    move.from = moved(form_, place_, -windows, -numbers);
    move.sendSet = sendSet;
    move.receiveSet = receiveSet;
    move.sendOrigin = ringOrigin(form_, place_, sentStep);
    move.receiveOrigin = ringOrigin(form_, place_, receivedStep);
    into.moves.push_back(move);
  }

  int freeSet() {
    const auto needed = [&](int set) {
      return set == current_ || set == first_ || set == next_ || (form_.keepHome && set == 0);
    };
    int set = 0;
    while (needed(set)) ++set;
    schedule_.sets = std::max(schedule_.sets, set + 1);
    return set;
  }

  const RingForm& form_;
  int place_;
  RingSchedule schedule_;
  int current_ = 0;
  int first_ = kNoSet;  ///< the first set of a window, while it is being sent to the next window
  int next_ = kNoSet;   ///< the first set of the next window, while it arrives
};

}  // namespace

int ringOrigin(const RingForm& form, int place, int step) {
  return moved(form, place, -(step / form.inner), -(step % form.inner));
}

RingSchedule ringSchedule(const RingForm& form, int place) {
  return Maker(form, place).make();
}

Slice sliceOf(size_t bytes, int slice, int slices) {
  const auto count = static_cast<size_t>(slices);
  const size_t even = (bytes / count + (bytes % count == 0 ? 0 : 1) + kCacheLine - 1) / kCacheLine * kCacheLine;
  const size_t length = slices == 1 ? bytes : std::max(even, kLeastSlice);
  const size_t begin = std::min(bytes, static_cast<size_t>(slice) * length);
  return {begin, std::min(length, bytes - begin)};
}

}  // namespace seqpar
