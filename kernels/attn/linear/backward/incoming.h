// What comes into a segment: the state before it, or the gradient of the state after it. It is what the maps on that
// side leave, the nearest first, and what is left there of the state that comes into the rank.
#pragma once

#include "kernels/attn/linear/backward/gates.h"

namespace seqpar::attn::backward {

struct Incoming {
  const float* states;     ///< the nearest map's block of its state
  const float* logs;       ///< its log-decays
  int64_t toState, toLog;  ///< from there to the next one's
  int maps, width;         ///< width: log-decays of a map
  bool apart;              ///< else the nearest one's state is what all leave
  const float* intoRank;   ///< the block; NULL: 0

  template <class T>
  SEQPAR_WARP static Incoming before(const Task& task, const Item<T>& item) {
    return of(task, item, task.before, -1, item.segment, task.initial);
  }
  template <class T>
  SEQPAR_WARP static Incoming after(const Task& task, const Item<T>& item) {
    return of(task, item, task.after, 1, task.segments - 1 - item.segment, task.finalGradient);
  }

  /// add(block of numbers, their factors in rows `row` and `row` + 8) for each term; of rows, `rows` exist.
  template <class Add>
  SEQPAR_WARP void each(int row, int rows, const Add& add) const {
    const int first = width > 1 && row < rows ? row : 0, second = width > 1 && row + 8 < rows ? row + 8 : 0;
    float log = 0, log8 = 0;
    SEQPAR_ROLL
    for (int i = 0; i <= maps; ++i) {
      const float* block = i == maps ? intoRank : i == 0 || apart ? states + i * toState : nullptr;
      if (block != nullptr) add(block, decayOf(log * kLog2e), decayOf(log8 * kLog2e));
      if (i == maps) continue;
      log += logs[i * toLog + first];
      log8 += logs[i * toLog + second];
    }
  }

 private:
  template <class T>
  SEQPAR_WARP static Incoming of(const Task& task, const Item<T>& item, const SegmentMaps& all, int step, int maps,
                                 const float* intoRank) {
    const bool channel = task.gate == Gate::Channel;
    const int64_t size = int64_t{task.dk} * task.dv, head = int64_t{item.sequence} * task.heads + item.head;
    const int width = channel ? task.dk : 1;
    return {all.states + (item.map + (task.apart ? step : 0)) * size + item.stateOffset(task),
            all.logDecays + (item.map + step) * width + (channel ? item.keyBlock * kBlock : 0),
            step * size,
            int64_t{step} * width,
            maps,
            width,
            task.apart,
            intoRank == nullptr ? nullptr : intoRank + head * size + item.stateOffset(task)};
  }
};

}  // namespace seqpar::attn::backward
