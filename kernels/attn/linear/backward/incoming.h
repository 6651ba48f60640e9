// The state before a segment, or the gradient of the state after it: the sum of the maps on that side, the nearest
// first, and of the decayed state that enters the rank.
#pragma once

#include "kernels/attn/linear/backward/gates.h"

namespace seqpar::attn::backward {

struct Incoming {
  const float* states;     ///< block of the nearest map's state
  const float* logs;       ///< its log-decays
  int64_t toState, toLog;  ///< strides to the next map
  int maps, width;         ///< width: log-decays per map
  Maps content;            ///< Prefix: the nearest state is the result of all
  const float* intoRank;   ///< block of the state that enters the rank; NULL: 0

  /// `which`: of the item's heads.
  template <class T>
  SEQPAR_DEVICE static Incoming before(const Task& task, const Item<T>& item, int which = 0) {
    return of(task, item, which, task.before, -1, item.before, item.continues ? task.initial : nullptr);
  }
  template <class T>
  SEQPAR_DEVICE static Incoming after(const Task& task, const Item<T>& item, int which = 0) {
    return of(task, item, which, task.after, 1, item.after, item.reachesEnd ? task.finalGradient : nullptr);
  }

  /// Calls add(block, its factors in rows `row` and `row` + 8) for each term; `rows` rows are valid.
  template <class Add>
  SEQPAR_DEVICE void each(int row, int rows, const Add& add) const {
    const int first = width > 1 && row < rows ? row : 0, second = width > 1 && row + 8 < rows ? row + 8 : 0;
    float log = 0, log8 = 0;
    SEQPAR_ROLLED
    for (int i = 0; i <= maps; ++i) {
      const float* block = i == maps ? intoRank : i == 0 || content != Maps::Prefix ? states + i * toState : nullptr;
      if (block != nullptr) add(block, decayOf(log * kLog2e), decayOf(log8 * kLog2e));
      if (i == maps) continue;
      log += logs[i * toLog + first];
      log8 += logs[i * toLog + second];
    }
  }

 private:
  template <class T>
  SEQPAR_DEVICE static Incoming of(const Task& task, const Item<T>& item, int which, const StateMaps& all, int step,
                                   int maps, const float* intoRank) {
    const bool channel = task.gate == Gate::Channel;
    const int64_t size = int64_t{task.dk} * task.dv, head = int64_t{item.sequence} * task.heads + item.head + which;
    const int64_t map = item.map + int64_t{which} * task.mapCount;
    const int width = channel ? task.dk : 1;
    return {all.states + (map + (task.content != Maps::Prefix ? step : 0)) * size + item.stateOffset(task),
            all.transitions + (map + step) * width + (channel ? item.keyBlock * kBlock : 0),
            step * size,
            int64_t{step} * width,
            maps,
            width,
            task.content,
            intoRank == nullptr ? nullptr : intoRank + head * size + item.stateOffset(task)};
  }
};

}  // namespace seqpar::attn::backward
