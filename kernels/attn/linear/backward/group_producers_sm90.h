// The fifth warpgroup of the gradients' kernel for groups of heads (group_sm90.h): loads, factors of decays, and
// the gates' gradients.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/group_memory_sm90.h"
#include "kernels/attn/linear/head_input_gates.h"

namespace seqpar::attn::backward::sm90 {

template <class T, class Shape>
struct GroupProducers {
  using Memory = GroupMemory<T, Shape>;
  using Parts = GroupParts<Shape>;
  static constexpr int kStages = Memory::kStages, kPanels = Shape::kPanels, kKeyPanels = Memory::kKeyPanels;
  using Pipe = StagesOf<kStages>;

  /// One thread: loads the tiles of heads up to kStages ahead, and queries and keys when no warp uses the last ones.
  /// Only it waits for the states' kernel, which no other warp's data depends on.
  SEQPAR_DEVICE static void load(const GroupTask& task, Memory& memory) {
    Pipe pipe;
    int shared = 1;
    ptx::griddepcontrolWait();
    // Before the tiles of the last free stage, which would delay them, and which are needed later.
    const int parts = Parts::countOf(task), before = parts < kStages ? 0 : kStages - 2;
    eachChunk<Shape>(task, [&](const GroupItem& item) {
      const int token = static_cast<int>(item.token);
      for (int h = 0; h < parts; ++h) {
        auto& stage = memory.stages[pipe.stage];
        awaitPhase(memory.empty[pipe.stage], pipe.parity ^ 1);
        uint32_t full = ptx::sharedAddress(memory.full + pipe.stage);
        if (item.rows < kChunk) {
          ptx::mbarrierArrive(full);
          full = ptx::sharedAddress(memory.partial + pipe.stage);
        }
        constexpr int kImageBytes = Shape::kElements * int{sizeof(T)};
        const bool other = Shape::kKeyBlocks > 1 && Memory::hasValues(item, h);
        ptx::mbarrierArriveExpectTx(full, int{sizeof(stage)} - (Shape::kKeyBlocks == 1 || other ? 0 : kImageBytes));
        SEQPAR_UNROLL
        for (int panel = 0; panel < kPanels; ++panel) {
          const int column = (Parts::panelOf(task, h) + panel) * kPanel, at = panel * kTilePanel,
                    head = item.head + Parts::headOf(task, h);
          ptx::tmaLoad(ptx::sharedAddress(stage.v + at), task.values, full, column, head, token, item.sequence);
          ptx::tmaLoad(ptx::sharedAddress(stage.dOut + at), task.outputs, full, column, head, token, item.sequence);
        }
        const auto loadImage = [&](T* to, const void* from, int block) {
          ptx::cpAsyncBulkLoad(to, item.imageOf<T>(from, task, Parts::headOf(task, h), block, Parts::panelOf(task, h)),
                               kImageBytes, full);
        };
        loadImage(stage.before, task.chunks.states, item.block);
        loadImage(stage.after, task.chunks.gradients, item.block);
        if (other) loadImage(stage.after + Shape::kElements, task.chunks.gradients, 1 - item.block);
        pipe.next();
        if (h == before) {
          awaitPhase(memory.sharedEmpty, shared);
          shared ^= 1;
          loadShared(task, item, memory);
        }
      }
    });
  }
  SEQPAR_DEVICE static void loadShared(const GroupTask& task, const GroupItem& item, Memory& memory) {
    const uint32_t full = ptx::sharedAddress(item.rows < kChunk ? &memory.sharedPartial : &memory.shared);
    ptx::mbarrierArriveExpectTx(full, 2 * Memory::kTileOfKeys * int{sizeof(T)});
    SEQPAR_UNROLL
    for (int panel = 0; panel < kKeyPanels; ++panel) {
      const int head = item.head / task.group, token = static_cast<int>(item.token);
      ptx::tmaLoad(ptx::sharedAddress(memory.q + panel * kTilePanel), task.queries, full, panel * kPanel, head, token,
                   item.sequence);
      ptx::tmaLoad(ptx::sharedAddress(memory.k + panel * kTilePanel), task.keys, full, panel * kPanel, head, token,
                   item.sequence);
    }
  }
  /// One warp: zeroes the rows of a panel from `rows` on, which may belong to another sequence.
  SEQPAR_DEVICE static void clearPanel(T* panel, int rows, int lane) {
    constexpr uint32_t kZeros[4] = {0, 0, 0, 0};
    for (int unit = rows * 8 + lane; unit < kTilePanel / 8; unit += 32) ptx::store(panel + unit * 8, kZeros);
  }

  /// Decays and input gates of tokens 2 lane and 2 lane + 1.
  struct Gates {
    float logs[2], gates[2];

    SEQPAR_DEVICE void load(const GroupTask& task, const GroupItem& item, int head, int lane) {
      const HeadInputGates input(task.inputGates, task.inputGateType, item.sequence, head);
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int row = lane * 2 + i;
        const bool valid = row < item.rows;
        logs[i] = 0;
        gates[i] = valid ? 1.f : 0.f;
        if (!valid) continue;
        if (task.gate == Gate::Token) {
          logs[i] = static_cast<const float*>(
              task.gates.data)[item.sequence * task.gates.batch + (item.token + row) * task.gates.token +
                               head * task.gates.head];
        } else if (task.gate == Gate::Head) {
          logs[i] = static_cast<const float*>(task.gates.data)[head];
        }
        if (input.given()) gates[i] = input.read(item.token + row);
      }
    }
  };
  /// One warp: factors of each head. The next head's gates are loaded meanwhile.
  SEQPAR_DEVICE static void computeFactors(const GroupTask& task, Memory& memory) {
    Pipe pipe;
    StagesOf<Memory::kSlots> slots;
    const int lane = ptx::thread() % 32;
    uint32_t partial = 0, sharedPartial = 0;  // parities
    Gates next;
    eachChunk<Shape>(task, [&](const GroupItem& item) {
      next.load(task, item, item.head, lane);
      for (int h = 0; h < Parts::countOf(task); ++h) {
        const Gates of = next;
        if (h + 1 < Parts::countOf(task)) next.load(task, item, item.head + Parts::headOf(task, h + 1), lane);
        awaitPhase(memory.written[slots.stage], slots.parity ^ 1);
        auto& factors = memory.factors[slots.stage];
        const float own[2] = {bounded(of.logs[0]), bounded(of.logs[1])};
        float before = own[0] + own[1];
        SEQPAR_UNROLL
        for (int distance = 1; distance < 32; distance *= 2) {
          const float other = ptx::shfl(before, lane - distance);
          if (lane >= distance) before += other;
        }
        const float last = ptx::shfl(before, 31);
        SEQPAR_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int row = lane * 2 + i;
          const float sum = i == 0 ? before - own[1] : before;
          factors.sums[row] = sum;
          factors.fromStart[row] = row < item.rows ? task.scale * decayOf(sum) : 0.f;
          factors.inverse(row) = ptx::ex2Approx(-sum);
          factors.gate(row) = of.gates[i];
          factors.toEnd[row] = row < item.rows ? decayOf(last - sum) : 0.f;
        }
        if (item.rows < kChunk) {
          auto& stage = memory.stages[pipe.stage];
          awaitPhase(memory.partial[pipe.stage], static_cast<int>(partial >> pipe.stage & 1));
          partial ^= 1u << pipe.stage;
          SEQPAR_UNROLL
          for (int panel = 0; panel < kPanels; ++panel) {
            clearPanel(stage.v + panel * kTilePanel, item.rows, lane);
            clearPanel(stage.dOut + panel * kTilePanel, item.rows, lane);
          }
          if (h == 0) {
            awaitPhase(memory.sharedPartial, static_cast<int>(sharedPartial));
            sharedPartial ^= 1;
            SEQPAR_UNROLL
            for (int panel = 0; panel < kKeyPanels; ++panel) {
              clearPanel(memory.q + panel * kTilePanel, item.rows, lane);
              clearPanel(memory.k + panel * kTilePanel, item.rows, lane);
            }
          }
          warpgroup::fenceProxyAsync();
          ptx::syncwarp();
          if (h == 0 && lane == 0) ptx::mbarrierArrive(ptx::sharedAddress(&memory.shared));
        }
        awaitPhase(memory.empty[pipe.stage], pipe.parity ^ 1);  // `full` is in this head's phase
        ptx::mbarrierArrive(ptx::sharedAddress(memory.full + pipe.stage));
        pipe.next();
        slots.next();
      }
    });
  }
  /// One warp: gradients of the gates of each head.
  SEQPAR_DEVICE static void writeAllGates(const GroupTask& task, Memory& memory) {
    StagesOf<Memory::kSlots> slots;
    const int lane = ptx::thread() % 32;
    eachChunk<Shape>(task, [&](const GroupItem& item) {
      GateTerms terms;
      for (int h = 0; h < Parts::countOf(task); ++h) {
        awaitPhase(memory.summed[slots.stage], slots.parity);
        if (Parts::panelOf(task, h) == 0) terms = {};
        const auto& factors = memory.factors[slots.stage];
        addTerms(terms, factors, memory.sums[slots.stage], Memory::hasValues(item, h), lane);
        const bool ends = Parts::headOf(task, h + 1) != Parts::headOf(task, h);
        // A head of several parts has one in each block of keys.
        if (Parts::bitsOf(task) > 0 ? ends : Memory::hasValues(item, h))
          writeInput(task, item, item.head + Parts::headOf(task, h), terms, lane);
        if (ends) writeGates(task, item, item.head + Parts::headOf(task, h), factors, terms, lane);
        ptx::syncwarp();
        if (lane == 0) ptx::mbarrierArrive(ptx::sharedAddress(memory.written + slots.stage));
        slots.next();
      }
    });
  }
  /// Of a head's tokens 2 lane and 2 lane + 1, added over its parts.
  struct GateTerms {
    float own[2] = {0, 0};     ///< q dq - k dk
    float inputs[2] = {0, 0};  ///< v dv, without input gates
    float carry = 0;           ///< this lane's part
  };
  SEQPAR_DEVICE static void addTerms(GateTerms& to, const typename Memory::Factors& factors,
                                     const typename Memory::Sums& sums, bool hasValues, int lane) {
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = lane * 2 + i;
      if (!hasValues) {
        to.own[i] += sums.states[row];
        continue;
      }
      const float query = sums.queries[0][row] + sums.queries[1][row],
                  value = sums.values[0][row] + sums.values[1][row];
      const float key = value * factors.gate(row);
      to.carry += key - query;
      to.own[i] += query + sums.states[row] - key;
      to.inputs[i] += value;
    }
    float ofStates = 0;
    if (lane < 4 * Memory::kCarryLanes) ofStates = sums.carry[0][lane] + sums.carry[1][lane];
    to.carry += times(decayOf(factors.sums[kChunk - 1]), ofStates);
  }
  SEQPAR_DEVICE static void writeInput(const GroupTask& task, const GroupItem& item, int head, const GateTerms& terms,
                                       int lane) {
    const Target& to = task.dInputGates;
    if (to.data == nullptr) return;
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = lane * 2 + i;
      if (row >= item.rows) continue;
      const int64_t at = item.sequence * to.batch + (item.token + row) * to.token + head * to.head +
                         (Parts::bitsOf(task) > 0 ? item.block * to.block : 0);
      if (to.type == seqparFloat32) {
        static_cast<float*>(to.data)[at] = terms.inputs[i];
      } else {
        static_cast<uint16_t*>(to.data)[at] = static_cast<uint16_t>(ptx::pack<Bf16>(terms.inputs[i], 0));
      }
    }
  }
  SEQPAR_DEVICE static void writeGates(const GroupTask& task, const GroupItem& item, int head,
                                       const typename Memory::Factors& factors, const GateTerms& terms, int lane) {
    const Target& to = task.dGates;
    if (to.data == nullptr) return;
    float last = terms.carry;
    SEQPAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) last += ptx::shflXor(last, mask);
    float sum = terms.own[0] + terms.own[1];
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = ptx::shfl(sum, lane + distance);
      if (lane + distance < 32) sum += other;
    }
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = lane * 2 + i;
      const float log = factors.sums[row] - (row > 0 ? factors.sums[row - 1] : 0.f);
      if (row >= item.rows) continue;
      const float value = log < kForgottenLog2 ? 0.f : last + (i == 0 ? sum : sum - terms.own[0]);
      static_cast<float*>(
          to.data)[item.sequence * to.batch + (item.token + row) * to.token + head * to.head + item.block * to.block] =
          value;
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
