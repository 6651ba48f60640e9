// The backward pass of q, k and v in fp32: the recurrences, token by token. Simple, but slow.
//
// Work      a CTA of 256 threads takes items (sequence, head, 128 channels, 128 columns, segment) in steps of the grid
// Roles     all threads alike: each has 4 x 16 elements of the state
// Tiles     stages of kStage tokens; the state 128 x 128 fp32 in registers
// Smem      ExactMemory: a stage of q, k, v, dO and decays; parts of sums
// Barriers  __syncthreads(): a stage is loaded; a token's parts are stored, and read
// Overlap   none
#pragma once

#include "kernels/attn/linear/backward/gates.h"
#include "kernels/attn/linear/backward/tiles.h"

namespace seqpar::attn::backward {

constexpr int kStage = 16;                         ///< tokens in shared memory at a time
constexpr int kExactRows = 4, kExactColumns = 16;  ///< of a block's state, per thread

constexpr int kExactWarps = 8, kExactThreads = kExactWarps * 32;

struct ExactMemory {
  float q[kStage][kBlock], k[kStage][kBlock], v[kStage][kBlock], dOut[kStage][kBlock], decay[kStage][kBlock];
  float columns[kExactWarps][kBlock];  ///< parts of dv
  float rows[kExactWarps];             ///< parts of a token's gate gradient
  float logs[2][kBlock];
};

struct ExactKernel {
  using State = float[kExactRows][kExactColumns];

  struct Place {
    int thread = ptx::thread(), row = thread / 8 * kExactRows, column = thread % 8 * kExactColumns;
  };

  /// Loads tokens first ... first+15; missing ones are zero, without decay. Returns the sum of the logarithms that this
  /// thread loaded, all of channel thread % kBlock.
  SEQPAR_DEVICE static float fetch(const Task& task, const Item<float>& item, int64_t first, ExactMemory& memory,
                                   int thread) {
    const int column = thread % kBlock;
    float sum = 0;
    for (int row = thread / kBlock; row < kStage; row += kExactThreads / kBlock) {
      const int64_t token = first + row;
      const bool exists = token < item.end, key = exists && column < item.keys, value = exists && column < item.values;
      memory.q[row][column] = key ? item.q[token * task.q.token + column] : 0.f;
      memory.k[row][column] = key ? item.k[token * task.k.token + column] : 0.f;
      memory.v[row][column] = value ? item.v[token * task.v.token + column] : 0.f;
      memory.dOut[row][column] = value ? item.dOut[token * task.dOut.token + column] : 0.f;
      float log = 0;
      if (key) log = bounded(gate(task, item, token, column));
      memory.decay[row][column] = decayOf(log);
      sum += log;
    }
    return sum;
  }
  SEQPAR_DEVICE static float gate(const Task& task, const Item<float>& item, int64_t token, int column) {
    switch (task.gate) {
      case Gate::None:
        return 0;
      case Gate::Head:
        return *reinterpret_cast<const float*>(item.gates);
      case Gate::Token:
        return reinterpret_cast<const float*>(item.gates)[token * task.gates.token];
      case Gate::Channel:
        break;
    }
    const int64_t offset = token * task.gates.token + column;
    if (task.gateType == seqparFloat32) return reinterpret_cast<const float*>(item.gates)[offset];
    return ptx::lowOf<Bf16>(reinterpret_cast<const uint16_t*>(item.gates)[offset]);
  }

  /// x = at + diag(exp(logDecay)) earlier; `at` and `earlier` may be NULL. logDecay is the sum over `count` maps,
  /// starting with `map`.
  SEQPAR_DEVICE static void load(State& x, const Task& task, const Item<float>& item, const float* states,
                                 const float* transitions, int64_t map, int count, const float* earlier,
                                 const Place& me) {
    const int width = task.gate == Gate::Channel ? task.dk : 1;
    const float* logs = transitions + map * width + (width > 1 ? item.keyBlock * kBlock : 0);
    const float* at = states == nullptr ? nullptr : states + item.map * task.dk * task.dv + item.stateOffset(task);
    for (int r = 0; r < kExactRows; ++r) {
      const int row = me.row + r;
      const float factor =
          earlier != nullptr && row < item.keys ? decayOfMaps(logs + (width == 1 ? 0 : row), count, width) : 0.f;
      SEQPAR_UNROLL
      for (int c = 0; c < kExactColumns; ++c) {
        const int64_t offset = int64_t{row} * task.dv + me.column + c;
        const bool exists = row < item.keys && me.column + c < item.values;
        x[r][c] = exists && at != nullptr ? at[offset] : 0.f;
        if (exists && factor != 0) x[r][c] += factor * earlier[offset];
      }
    }
  }
  SEQPAR_DEVICE static void store(const State& x, const Task& task, const Item<float>& item, float* block,
                                  const Place& me) {
    for (int r = 0; r < kExactRows; ++r) {
      SEQPAR_UNROLL
      for (int c = 0; c < kExactColumns; ++c) {
        if (me.row + r < item.keys && me.column + c < item.values) {
          block[int64_t{me.row + r} * task.dv + me.column + c] = x[r][c];
        }
      }
    }
  }

  /// Reduces row sums over the 8 threads of a row.
  SEQPAR_DEVICE static void addRows(float (&sum)[kExactRows]) {
    SEQPAR_UNROLL
    for (int r = 0; r < kExactRows; ++r) {
      SEQPAR_UNROLL
      for (int mask = 1; mask < 8; mask *= 2) sum[r] += ptx::shflXor(sum[r], mask);
    }
  }

  /// The reverse map of a segment.
  SEQPAR_DEVICE static void segmentMaps(const Task& task) {
    auto& memory = *reinterpret_cast<ExactMemory*>(ptx::sharedMemory());
    const Place me;
    const int64_t items = int64_t{task.batch} * task.headCount * task.keyBlocks * task.valueBlocks * task.segments;
    for (int64_t index = ptx::block(); index < items; index += ptx::blocks()) {
      const Item<float> item(task, index);
      State x = {};
      float log = 0;
      for (int64_t stage = item.first + (item.end - 1 - item.first) / kStage * kStage; stage >= item.first;
           stage -= kStage) {
        if (item.end <= item.first) break;
        log += fetch(task, item, stage, memory, me.thread);
        ptx::syncthreads();
        for (int t = kStage - 1; t >= 0; --t) {
          SEQPAR_UNROLL
          for (int r = 0; r < kExactRows; ++r) {
            const float q = task.scale * memory.q[t][me.row + r], decay = memory.decay[t][me.row + r];
            SEQPAR_UNROLL
            for (int c = 0; c < kExactColumns; ++c) {
              x[r][c] = times(decay, x[r][c] + q * memory.dOut[t][me.column + c]);
            }
          }
        }
        ptx::syncthreads();
      }
      store(x, task, item, task.maps.states + item.map * task.dk * task.dv + item.stateOffset(task), me);
      memory.logs[me.thread / kBlock][me.thread % kBlock] = log;
      ptx::syncthreads();
      if (item.valueBlock == 0 && me.thread < item.keys) {
        const float sum = item.ends() ? -INFINITY : (memory.logs[0][me.thread] + memory.logs[1][me.thread]) * kLn2;
        if (task.gate == Gate::Channel) {
          task.maps.transitions[item.map * task.dk + item.keyBlock * kBlock + me.thread] = sum;
        } else if (item.keyBlock == 0 && me.thread == 0) {
          task.maps.transitions[item.map] = sum;
        }
      }
      ptx::syncthreads();
    }
  }

  SEQPAR_DEVICE static float* addressIn(const Target& target, const Item<float>& item, int64_t token, int64_t offset) {
    return static_cast<float*>(target.data) + item.sequence * target.batch + token * target.token +
           item.head * target.head + offset;
  }

  SEQPAR_DEVICE static void gradients(const Task& task) {
    auto& memory = *reinterpret_cast<ExactMemory*>(ptx::sharedMemory());
    const Place me;
    const int64_t items = int64_t{task.batch} * task.headCount * task.keyBlocks * task.valueBlocks * task.segments;
    for (int64_t index = ptx::block(); index < items; index += ptx::blocks()) {
      const Item<float> item(task, index);
      const int64_t whole =
          (int64_t{item.sequence} * task.heads + item.head) * task.dk * task.dv + item.stateOffset(task);
      const auto from = [&](const float* states) { return states == nullptr ? nullptr : states + whole; };
      State x, y;
      load(x, task, item, item.before > 0 ? task.before.states : nullptr, task.before.transitions,
           item.map - item.before, item.before, from(item.continues ? task.initial : nullptr), me);
      forward(task, item, memory, x, me);
      load(y, task, item, item.after > 0 ? task.after.states : nullptr, task.after.transitions, item.map + 1,
           item.after, from(item.reachesEnd ? task.finalGradient : nullptr), me);
      float carry[kExactRows] = {};
      SEQPAR_UNROLL
      for (int r = 0; r < kExactRows; ++r) {
        SEQPAR_UNROLL
        for (int c = 0; c < kExactColumns; ++c) carry[r] += x[r][c] * y[r][c];
      }
      addRows(carry);
      reverse(task, item, memory, y, carry, me);
      if (item.isFirst() && task.dInitial != nullptr) store(y, task, item, task.dInitial + whole, me);
    }
  }

 private:
  /// Computes dq, and the state after the segment.
  SEQPAR_DEVICE static void forward(const Task& task, const Item<float>& item, ExactMemory& memory, State& x,
                                    const Place& me) {
    for (int64_t stage = item.first; stage < item.end; stage += kStage) {
      fetch(task, item, stage, memory, me.thread);
      ptx::syncthreads();
      const int tokens = item.end - stage < kStage ? static_cast<int>(item.end - stage) : kStage;
      for (int t = 0; t < tokens; ++t) {
        float dq[kExactRows] = {};
        SEQPAR_UNROLL
        for (int r = 0; r < kExactRows; ++r) {
          const float k = memory.k[t][me.row + r], decay = memory.decay[t][me.row + r];
          SEQPAR_UNROLL
          for (int c = 0; c < kExactColumns; ++c) {
            x[r][c] = times(decay, x[r][c]) + k * memory.v[t][me.column + c];
            dq[r] += x[r][c] * memory.dOut[t][me.column + c];
          }
        }
        addRows(dq);
        if (me.column == 0) writeRows(task.dq, item, stage + t, dq, task.scale, me);
      }
      ptx::syncthreads();
    }
  }

  SEQPAR_DEVICE static void writeRows(const Target& target, const Item<float>& item, int64_t token,
                                      const float (&values)[kExactRows], float scale, const Place& me) {
    float* to = addressIn(target, item, token, item.valueBlock * target.block + item.keyBlock * kBlock);
    for (int r = 0; r < kExactRows; ++r) {
      if (me.row + r < item.keys) to[me.row + r] = scale * values[r];
    }
  }

  /// Computes dk, dv and the gates' gradients; `carry` is the gradient of a decay after the segment.
  SEQPAR_DEVICE static void reverse(const Task& task, const Item<float>& item, ExactMemory& memory, State& y,
                                    float (&carry)[kExactRows], const Place& me) {
    const int lane = me.thread % 32, warpIndex = me.thread / 32;
    for (int64_t stage = item.first + (item.end - 1 - item.first) / kStage * kStage; stage >= item.first;
         stage -= kStage) {
      if (item.end <= item.first) break;
      fetch(task, item, stage, memory, me.thread);
      ptx::syncthreads();
      for (int t = static_cast<int>(item.end - stage < kStage ? item.end - stage : kStage) - 1; t >= 0; --t) {
        const int64_t token = stage + t;
        float dk[kExactRows] = {}, dv[kExactColumns] = {};
        SEQPAR_UNROLL
        for (int r = 0; r < kExactRows; ++r) {
          const float q = task.scale * memory.q[t][me.row + r], k = memory.k[t][me.row + r];
          SEQPAR_UNROLL
          for (int c = 0; c < kExactColumns; ++c) {
            y[r][c] += q * memory.dOut[t][me.column + c];
            dk[r] += y[r][c] * memory.v[t][me.column + c];
            dv[c] += y[r][c] * k;
          }
        }
        addRows(dk);
        if (me.column == 0) writeRows(task.dkOut, item, token, dk, 1, me);
        SEQPAR_UNROLL
        for (int c = 0; c < kExactColumns; ++c) {
          dv[c] += ptx::shflXor(dv[c], 8);
          dv[c] += ptx::shflXor(dv[c], 16);
          if (lane < 8) memory.columns[warpIndex][me.column + c] = dv[c];
        }
        const float sum = gates(task, item, token, memory, t, dk, carry, me);
        if (lane == 0) memory.rows[warpIndex] = sum;
        ptx::syncthreads();
        writeColumns(task, item, token, memory, t, me);
        ptx::syncthreads();
        SEQPAR_UNROLL
        for (int r = 0; r < kExactRows; ++r) {
          SEQPAR_UNROLL
          for (int c = 0; c < kExactColumns; ++c) y[r][c] = times(memory.decay[t][me.row + r], y[r][c]);
        }
      }
      ptx::syncthreads();
    }
  }

  /// Computes the gradient of a channel's decay; returns the warp's sum. Reads the dq that this thread has written.
  SEQPAR_DEVICE static float gates(const Task& task, const Item<float>& item, int64_t token, const ExactMemory& memory,
                                   int t, const float (&dk)[kExactRows], float (&carry)[kExactRows], const Place& me) {
    float sum = 0;
    if (me.column == 0) {
      const float* dq = addressIn(task.dq, item, token, item.valueBlock * task.dq.block + item.keyBlock * kBlock);
      float values[kExactRows];
      for (int r = 0; r < kExactRows; ++r) {
        if (me.row + r < item.keys) {
          carry[r] += memory.q[t][me.row + r] * dq[me.row + r] - memory.k[t][me.row + r] * dk[r];
        }
        values[r] = memory.decay[t][me.row + r] == 0 ? 0.f : carry[r];
        sum += me.row + r < item.keys ? values[r] : 0.f;
      }
      if (task.gate == Gate::Channel && task.dGates.data != nullptr) {
        const int64_t offset = item.valueBlock * task.dGates.block + item.keyBlock * kBlock +
                               item.head * task.dGates.head + token * task.dGates.token +
                               item.sequence * task.dGates.batch + me.row;
        for (int r = 0; r < kExactRows; ++r) {
          if (me.row + r >= item.keys) continue;
          if (task.dGates.type == seqparFloat32) {
            static_cast<float*>(task.dGates.data)[offset + r] = values[r];
          } else {
            static_cast<uint16_t*>(task.dGates.data)[offset + r] = static_cast<uint16_t>(ptx::pack<Bf16>(values[r], 0));
          }
        }
      }
    }
    SEQPAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) sum += ptx::shflXor(sum, mask);
    return sum;
  }

  SEQPAR_DEVICE static void writeColumns(const Task& task, const Item<float>& item, int64_t token,
                                         const ExactMemory& memory, int, const Place& me) {
    float sum = 0;
    if (me.thread < item.values) {
      for (int w = 0; w < kExactWarps; ++w) sum += memory.columns[w][me.thread];
      addressIn(task.dvOut, item, token, item.keyBlock * task.dvOut.block + item.valueBlock * kBlock)[me.thread] = sum;
    }
    if (me.thread == 0 && task.gate != Gate::Channel && task.dGates.data != nullptr) {
      float all = 0;
      for (int w = 0; w < kExactWarps; ++w) all += memory.rows[w];
      *addressIn(task.dGates, item, token, (item.keyBlock * task.valueBlocks + item.valueBlock) * task.dGates.block) =
          all;
    }
  }
};

}  // namespace seqpar::attn::backward
