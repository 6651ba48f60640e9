// Outputs of all chunks in parallel on sm_90a, from the states before each 128 tokens
// (../backward/chunk_states_sm90.h), for token decays or none: O = (decays * Q K^T) V + decays * (Q S).
//
// Work      a CTA of 384 threads, one per SM, takes an equal range of units (sequence, key head, chunk, head, 64
//           columns of v), the last index fastest. The scores Q K^T of a chunk are computed once for all of its heads
// Roles     warpgroups 0, 1: consumers, wgmma, 64 queries each; 2: two warps compute factors of 64 tokens each, one
//           thread issues TMA loads. Registers: kConsumerRegisters, kProducerRegisters
// Tiles     chunks of 128 tokens; scores 64 x 128 and outputs 64 x 64 fp32 in registers of each consumer
// Smem      queries (32 KiB per 128 channels), stages of values and states (16 KiB each) or of keys, outputs (8 KiB per
//           consumer)
// Barriers  mbarriers of a stage and of queries: full, empty. warpgroup::sync(): a consumer's outputs
// Overlap   later units are loaded while one is multiplied. No overlap with other kernels
#pragma once

#include "kernels/attn/linear/chunks/chunk_outputs_consumer_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kGated: with input gates. The task's dOut is the output.
template <class T, bool kGated>
struct ChunkOutputsKernel {
  using Arguments = ChunkStatesTask;
  using Memory = ChunkOutputsMemory<T>;
  static constexpr int kConsumers = Half::kThreads, kThreads = kConsumers + warpgroup::kThreads;
  static constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
  static_assert(kConsumers * kConsumerRegisters + warpgroup::kThreads * kProducerRegisters <= warpgroup::kSmRegisters);

  SEQPAR_DEVICE static void run(const ChunkStatesTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32);
    if (thread == 0) {
      for (int i = 0; i < Memory::kStages; ++i) {
        ptx::mbarrierInit(memory.full(i), 1 + kOutputTiles);
        ptx::mbarrierInit(memory.empty(i), kConsumers / 32);
      }
      ptx::mbarrierInit(memory.queriesFull(), 1);
      ptx::mbarrierInit(memory.queriesEmpty(), kConsumers / 32);
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    ptx::syncthreads();
    if (warp < kConsumers / 32) {
      warpgroup::setmaxnregInc<kConsumerRegisters>();
      ChunkOutputsConsumer<T>{task, memory, {}}.run();
    } else {
      warpgroup::setmaxnregDec<kProducerRegisters>();
      if (warp % 4 < kOutputTiles) computeFactors(task, memory, warp % 4, thread % 32);
      if (warp % 4 == kOutputTiles && thread % 32 == 0) load(task, memory);
    }
  }

 private:
  SEQPAR_DEVICE static void load(const ChunkStatesTask& task, Memory& memory) {
    constexpr int kBytes = kOutputPanel * int{sizeof(T)};
    const auto loadTokens = [&](T* to, const CUtensorMap& map, uint32_t barrier, int column, int head,
                                const OutputUnit& unit) {
      SEQPAR_UNROLL
      for (int tile = 0; tile < kOutputTiles; ++tile) {
        ptx::tmaLoad(ptx::sharedAddress(to + tile * (kOutputPanel / kOutputTiles)), map, barrier, column, head,
                     static_cast<int>(unit.token()) + tile * kChunkTokens, unit.sequence);
      }
    };
    const auto loadChannels = [&](T* to, const CUtensorMap& map, uint32_t barrier, int block, const OutputUnit& unit) {
      SEQPAR_UNROLL
      for (int panel = 0; panel < 2; ++panel) {
        loadTokens(to + panel * kOutputPanel, map, barrier, block * kBlock + panel * warpgroup::kPanel, unit.qkHead,
                   unit);
      }
    };
    eachUnit(
        task,
        [&](const OutputUnit& unit, int queries, int stage) {
          const uint32_t full = memory.queriesFull();
          if (queries > 0) ptx::mbarrierWaitParity(memory.queriesEmpty(), (queries & 1) ^ 1);
          ptx::mbarrierArriveExpectTx(full, 2 * kKeyBlocks * kBytes);
          for (int block = 0; block < kKeyBlocks; ++block) {
            loadChannels(memory.queries[block], task.queries, full, block, unit);
          }
          for (int block = 0; block < kKeyBlocks; ++block) {
            memory.awaitEmpty(stage + block);
            ptx::mbarrierArriveExpectTx(memory.full(stage + block), 2 * kBytes);
            loadChannels(memory.stage(stage + block), task.keys, memory.full(stage + block), block, unit);
          }
        },
        [&](const OutputUnit& unit, int, int stage) {
          const uint32_t full = memory.full(stage);
          memory.awaitEmpty(stage);
          ptx::mbarrierArriveExpectTx(full, (1 + kKeyBlocks) * kBytes);
          loadTokens(memory.stage(stage), task.values, full, unit.panel * warpgroup::kPanel, unit.head, unit);
          const T* states = static_cast<const T*>(task.to.states);
          for (int block = 0; block < kKeyBlocks; ++block) {
            ptx::cpAsyncBulkLoad(
                memory.stage(stage) + (1 + block) * kOutputPanel,
                states + task.to.panelAt(task, unit.sequence, unit.head, block, unit.panel, unit.chunk), kBytes, full);
          }
        });
  }

  /// Gates of tokens 2 lane and 2 lane + 1 of 64.
  struct Gates {
    float logs[2];
    uint32_t inputs[2];  ///< bits: a conversion would wait for the load

    SEQPAR_DEVICE void load(const Task& task, const OutputUnit& unit, int64_t token, int lane) {
      const auto* gates = static_cast<const float*>(task.gates.data);
      const HeadInputGates ofHead(task.inputGates, task.inputGateType, unit.sequence, unit.head);
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int64_t at = token + lane * 2 + i;
        const bool valid = at < task.tokens;
        logs[i] = 0;
        if (valid && task.gate == Gate::Head) logs[i] = gates[unit.head];
        if (valid && task.gate == Gate::Token) {
          logs[i] = gates[unit.sequence * task.gates.batch + at * task.gates.token + unit.head * task.gates.head];
        }
        if (kGated) inputs[i] = valid ? ofHead.bitsOf(at) : 0;
      }
    }
  };

  /// One warp: of 64 tokens.
  SEQPAR_DEVICE static void computeFactors(const ChunkStatesTask& task, Memory& memory, int tile, int lane) {
    constexpr int kAhead = 4;  // units with gates in flight
    const int64_t units = unitsOf(task), end = units * (ptx::block() + 1) / ptx::blocks();
    int64_t index = units * ptx::block() / ptx::blocks();
    Gates gates[kAhead];
    OutputUnit ahead(task, index);
    const auto fetch = [&](Gates& to) {
      if (index++ >= end) return;
      to.load(task, ahead, ahead.token() + tile * kChunkTokens, lane);
      ahead.advance(task);
    };
    SEQPAR_UNROLL
    for (int i = 0; i < kAhead; ++i) fetch(gates[i]);
    const auto pass = [&](int stage) {
      ptx::syncwarp();
      if (lane == 0) ptx::mbarrierArrive(memory.full(stage));
    };
    int which = 0;
    eachUnit(
        task,
        [&](const OutputUnit&, int, int stage) {
          for (int block = 0; block < kKeyBlocks; ++block) {
            memory.awaitEmpty(stage + block);
            pass(stage + block);
          }
        },
        [&](const OutputUnit&, int, int stage) {
          SEQPAR_UNROLL
          for (int i = 0; i < kAhead; ++i) {  // constant indices: the gates are in registers
            if (i != which) continue;
            const Gates own = gates[i];
            memory.awaitEmpty(stage);
            store(task, own, memory.factors[stage % Memory::kStages], tile, lane);
            fetch(gates[i]);
          }
          which = (which + 1) % kAhead;
          pass(stage);
        });
  }
  SEQPAR_DEVICE static void store(const Task& task, const Gates& gates, OutputFactors& to, int tile, int lane) {
    const float own = backward::bounded(gates.logs[1]);
    float sum = backward::bounded(gates.logs[0]) + own;
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = ptx::shfl(sum, lane - distance);
      if (lane >= distance) sum += other;
    }
    const float total = ptx::shfl(sum, 31), sums[2] = {sum - own, sum};
    const HeadInputGates kind(task.inputGates, task.inputGateType, 0, 0);
    float rows[2], inverses[2], ends[2], inputs[2] = {1, 1};
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (kGated) inputs[i] = kind.valueOf(gates.inputs[i]);
      rows[i] = task.scale * backward::decayOf(sums[i]);
      inverses[i] = inputs[i] * ptx::ex2Approx(-sums[i]);
      ends[i] = inputs[i] * backward::decayOf(total - sums[i]);
    }
    const int at = tile * kChunkTokens + lane * 2;
    ptx::storePair(to.sums + at, sums[0], sums[1]);
    ptx::storePair(to.inputs + at, inputs[0], inputs[1]);
    ptx::storePair(to.rows + at, rows[0], rows[1]);
    ptx::storePair(to.inverses + at, inverses[0], inverses[1]);
    if (tile == 0) ptx::storePair(to.ends + lane * 2, ends[0], ends[1]);
    if (lane == 0) to.totals[tile] = total;
  }
};

}  // namespace seqpar::attn::forward_sm90
