// Parts of the sm_90 kernel for outputs of all chunks (chunk_outputs_sm90.h): shared memory and units.
#pragma once

#include "kernels/attn/linear/backward/chunk_states_sm90.h"
#include "kernels/attn/linear/backward/token_sweep_sm90.h"

namespace seqpar::attn::forward_sm90 {

using backward::kBlock;
using backward::Task;
using backward::sm90::ChunkStatesTask;
using backward::sm90::Half;
using warpgroup::Operand;
using warpgroup::Terms;

constexpr int kKeyBlocks = 2;    ///< of 128 channels: keys have more than one
constexpr int kOutputTiles = 2;  ///< chunks of kChunkTokens per state
constexpr int kOutputTokens = kOutputTiles * kChunkTokens;
constexpr int kOutputPanel = kOutputTokens * warpgroup::kPanel;  ///< elements of 64 columns

/// Factors of tokens of one unit. Sums are log2-decays from the start of 64 tokens.
struct OutputFactors {
  float sums[kOutputTokens], inputs[kOutputTokens];
  float rows[kOutputTokens];      ///< the scale times the decay to a query
  float inverses[kOutputTokens];  ///< the input gate of a key over its decay: if the total is at least kLeastOfFactors
  float ends[kChunkTokens];       ///< of the first tile's keys: to its end
  float totals[kOutputTiles];
};

template <class T>
struct ChunkOutputsMemory {
  static constexpr int kStages = 2;
  T queries[kKeyBlocks][2 * kOutputPanel];
  T stages[kStages][(1 + kKeyBlocks) * kOutputPanel];  ///< values and states, or a block of keys
  T out[2][kOutputPanel / 2];
  alignas(16) OutputFactors factors[kStages];
  alignas(8) uint64_t barriers[kStages][2], queryBarriers[2];

  // Argument: running number of a stage.
  SEQPAR_DEVICE T* stage(int number) { return stages[number % kStages]; }
  SEQPAR_DEVICE uint32_t full(int number) const { return ptx::sharedAddress(&barriers[number % kStages][0]); }
  SEQPAR_DEVICE uint32_t empty(int number) const { return ptx::sharedAddress(&barriers[number % kStages][1]); }
  SEQPAR_DEVICE uint32_t queriesFull() const { return ptx::sharedAddress(&queryBarriers[0]); }
  SEQPAR_DEVICE uint32_t queriesEmpty() const { return ptx::sharedAddress(&queryBarriers[1]); }
  SEQPAR_DEVICE void awaitFull(int number) const { ptx::mbarrierWaitParity(full(number), number / kStages & 1); }
  SEQPAR_DEVICE void awaitEmpty(int number) const {
    if (number >= kStages) ptx::mbarrierWaitParity(empty(number), (number / kStages & 1) ^ 1);
  }
};

/// The units of a problem: 64 columns of 128 tokens of a head.
SEQPAR_BOTH_INLINE int64_t unitsOf(const Task& task) {
  const int panels = (task.dv + warpgroup::kPanel - 1) / warpgroup::kPanel;
  return int64_t{task.batch} * ((task.tokens + kOutputTokens - 1) / kOutputTokens) * task.heads * panels;
}

/// A unit. Divisions are only for a CTA's first one.
struct OutputUnit {
  int panel, inGroup, chunk, qkHead, sequence;
  int panels, chunks, head;

  SEQPAR_DEVICE OutputUnit(const Task& task, int64_t index)
      : panels((task.dv + warpgroup::kPanel - 1) / warpgroup::kPanel),
        chunks(static_cast<int>((task.tokens + kOutputTokens - 1) / kOutputTokens)) {
    panel = static_cast<int>(index % panels);
    index /= panels;
    inGroup = static_cast<int>(index % task.group);
    index /= task.group;
    chunk = static_cast<int>(index % chunks);
    index /= chunks;
    const int qkHeads = task.heads / task.group;
    qkHead = static_cast<int>(index % qkHeads);
    sequence = static_cast<int>(index / qkHeads);
    head = qkHead * task.group + inGroup;
  }
  SEQPAR_DEVICE void advance(const Task& task) {
    if (++panel < panels) return;
    panel = 0;
    ++head;
    if (++inGroup < task.group) return;
    inGroup = 0;
    head -= task.group;
    if (++chunk < chunks) return;
    chunk = 0;
    head += task.group;
    ++qkHead;
    if (head < task.heads) return;
    head = qkHead = 0;
    ++sequence;
  }
  SEQPAR_DEVICE bool startsScores() const { return panel == 0 && inGroup == 0; }
  SEQPAR_DEVICE int64_t token() const { return int64_t{chunk} * kOutputTokens; }
};

/// Calls scores(unit, running number of the queries, of the first stage of keys) before the first unit of each chunk
/// and key head, and outputs(unit, number of its queries, stage).
template <class OnScores, class OnOutputs>
SEQPAR_DEVICE void eachUnit(const Task& task, const OnScores& scores, const OnOutputs& outputs) {
  const int64_t units = unitsOf(task), end = units * (ptx::block() + 1) / ptx::blocks(),
                start = units * ptx::block() / ptx::blocks();
  int stage = 0, queries = -1;
  OutputUnit unit(task, start);
  for (int64_t index = start; index < end; ++index) {
    if (index == start || unit.startsScores()) {
      scores(unit, ++queries, stage);
      stage += kKeyBlocks;
    }
    outputs(unit, queries, stage++);
    unit.advance(task);
  }
}

}  // namespace seqpar::attn::forward_sm90
