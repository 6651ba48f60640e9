// Whether the backward on sm_90 processes chunks of heads with channel decays in parallel (channel_group_sm90.h), and
// the task and memory for that. Compiles everywhere.
#pragma once

#include "kernels/attn/linear/backward/chunk_states.h"

namespace seqpar::attn::backward {

/// As sizeof(sm90::ChunkRecord<Bf16>).
constexpr int64_t kChunkRecordBytes = (5 * 2 * kBlock + 2 * kChunkTokens) * kChunkTokens * 2 + 2 * 2 * kBlock * 4;

inline int64_t chunksOf(const LinearProblem& problem) {
  return (problem.tokens + kChunkTokens - 1) / kChunkTokens;
}
inline int64_t chunkRecordsBytes(const LinearProblem& problem) {
  return problem.batch * problem.heads * chunksOf(problem) * kChunkRecordBytes;
}

/// The task without maps: one segment has all tokens.
inline Task channelGroupsTask(const LinearProblem& problem, const Input& dOut) {
  Segments segments;
  segments.tokens = chunksOf(problem) * kChunkTokens;
  return taskOf(problem, segments, {0, problem.heads}, dOut);
}

/// What a forward keeps for the backward, in memory of bytes().
struct KeptChunks {
  char* records;     ///< ChannelTask::records
  uint32_t* strong;  ///< ChannelTask::strong
  void* states;      ///< ChunkStates::states

  KeptChunks(void* memory, const LinearProblem& problem)
      : records(static_cast<char*>(memory)),
        strong(reinterpret_cast<uint32_t*>(records + chunkRecordsBytes(problem))),
        states(records + chunkRecordsBytes(problem) + kStrongBytes) {}
  static int64_t bytes(const LinearProblem& problem) {
    const Task task = channelGroupsTask(problem, {});
    return chunkRecordsBytes(problem) + kStrongBytes + chunkStatesOf(task, 1).bytes(task);
  }

 private:
  static constexpr int64_t kStrongBytes = 128;
};

/// There are enough chunks, and chains of states of 64 columns, for the CTAs. Packed sequences are not supported.
inline bool formsChannelGroups(const LinearProblem& problem, const Segments& segments) {
  constexpr int64_t kLeastChains = 96, kLeastItems = 200, kMostBytes = INT64_C(3) << 30;
  if (problem.gate != Gate::Channel || problem.type != seqparBfloat16 || problem.heads != problem.qkHeads) return false;
  if (problem.dk <= kBlock || problem.dk > 2 * kBlock || problem.dv % 64 != 0 || segments.spans != nullptr)
    return false;
  const int64_t heads = problem.batch * problem.heads, blocks = 2;
  const Task task = channelGroupsTask(problem, {});
  return heads * blocks * (problem.dv / 64) * 2 >= kLeastChains && heads * chunksOf(problem) * blocks >= kLeastItems &&
         chunkRecordsBytes(problem) + 2 * chunkStatesOf(task, 1).bytes(task) <= kMostBytes;
}

}  // namespace seqpar::attn::backward
