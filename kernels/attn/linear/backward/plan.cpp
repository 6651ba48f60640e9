#include "kernels/attn/linear/backward/plan.h"

#include <algorithm>

#include "kernels/attn/linear/backward/channel_groups.h"
#include "kernels/attn/linear/gradients_with_maps.h"
#include "kernels/attn/linear/kept_states.h"
#include "kernels/attn/linear/pairs.h"

namespace seqpar::attn {
namespace backward {

int dimensionOf(const LinearProblem& problem) {
  return problem.dk <= 64 && problem.dv <= 64 ? 64 : kBlock;
}

int mostDimensionOf(const LinearProblem& problem) {
  return problem.gate == Gate::Channel ? dimensionOf(problem) : kBlock;
}

bool hasTwoHeads(const LinearProblem& problem) {
  return joinsShortHeads(problem) && problem.type != seqparFloat32;
}

int blocksOfGates(const Task& task) {
  const bool sums = task.gate == Gate::Channel || task.valueSums != nullptr;
  return sums ? task.valueBlocks : task.keyBlocks * task.valueBlocks;
}

namespace {

Workspace withoutChannelGroups(const LinearProblem& problem, const Segments& segments, bool joins, bool kept) {
  const bool groups = joins && formsGroups(problem, segments), paired = joins && pairsHeads(problem);
  Workspace result;
  const auto take = [&](int64_t bytes) {
    const int64_t at = result.size;
    result.size += (bytes + 255) / 256 * 256;
    return at;
  };
  Task task = taskOf(problem, segments, {0, problem.heads}, {});
  if (groups || paired) task.together = groups ? headsOfChain(problem) : kPair;
  if (groups) {
    const int64_t bytes = chunkStatesOf(task, 1).bytes(task),
                  terms = problem.batch * problem.tokens * problem.heads * task.keyBlocks * int64_t{sizeof(float)};
    if (!kept) result.states = take(bytes);
    result.stateGradients = take(bytes);
    if (problem.gate == Gate::Head || (problem.gate == Gate::Token && task.keyBlocks > 1)) result.gates = take(terms);
    if (task.together == 1) result.inputGates = take(terms);
    return result;
  }
  // Chunks of all CTAs, in the kernels that process the key blocks of a segment in different CTAs or in one.
  const int64_t chunks = (segments.tokens + kChunkTokens - 1) / kChunkTokens,
                keptChunks = std::min<int64_t>(itemsOf(task), kMostCtas) * chunks,
                keptTogether = std::min<int64_t>(itemsOf(task) / task.keyBlocks, kMostCtas) * chunks;
  Task two = task;
  two.together = kPair;
  const int64_t keptOfTwo = hasTwoHeads(problem) ? std::min<int64_t>(itemsOf(two), kMostCtas) * chunks : 0;
  if (problem.type != seqparFloat32) {
    const int64_t dimension = mostDimensionOf(problem);
    const int64_t keptStates = paired ? keptTogether : std::max(keptChunks, kPair * keptOfTwo);
    result.states = take(keptStates * dimension * dimension * 2);
    result.strong = take(itemsOf(task) * int64_t{sizeof(uint32_t)});
    if (problem.gate == Gate::Channel && dimension == kBlock) result.decays = take(keptChunks * kDecaySumsBytes);
    if (keptOfTwo > 0) result.decays = take(keptOfTwo * kDecaySumsBytes);
  }
  const int64_t numbers = problem.batch * problem.tokens * problem.heads;
  const int blocks = task.keyBlocks * task.valueBlocks;
  const auto terms = [&](int64_t width) { return take(numbers * width * int64_t{sizeof(float)}); };
  const auto takeValues = [&] {
    const int64_t sums = keptTogether * kValueSums * int64_t{sizeof(float)};  // Task::valueSums
    const int64_t each = numbers * task.keyBlocks * problem.dv * int64_t{sizeof(float)};
    return take(problem.gate == Gate::Channel || problem.type == seqparFloat32 ? each
                : paired                                                       ? sums
                                                                               : std::max(sums, each));
  };
  if (paired) {
    for (int64_t* at : {&result.dq, &result.dk}) *at = take(numbers / kPair * problem.dk * 2);
    for (int64_t* at : {&result.dqScales, &result.dkScales}) {
      *at = take(numbers / kPair * scalesOf(problem.dk) * int64_t{sizeof(float)});
    }
  } else if (task.group > 1 || task.valueBlocks > 1) {
    result.dq = terms(int64_t{task.valueBlocks} * problem.dk);
    result.dk = terms(int64_t{task.valueBlocks} * problem.dk);
  }
  if (task.keyBlocks > 1) {
    result.dv = takeValues();
    if (problem.gate != Gate::Channel) result.inputGates = terms(task.keyBlocks);
  }
  if (problem.gate == Gate::Channel && task.valueBlocks > 1)
    result.gates = terms(int64_t{task.valueBlocks} * problem.dk);
  if (problem.gate == Gate::Head || (problem.gate == Gate::Token && blocks > 1)) result.gates = terms(blocks);
  return result;
}

}  // namespace

Workspace workspaceOf(const LinearProblem& problem, const Segments& segments, bool joins, bool kept) {
  Workspace result = withoutChannelGroups(problem, segments, joins, kept);
  if (!joins || !formsChannelGroups(problem, segments)) return result;
  int64_t size = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t at = size;
    size += (bytes + 255) / 256 * 256;
    return at;
  };
  const Task task = channelGroupsTask(problem, {});
  const int64_t states = chunkStatesOf(task, 1).bytes(task);
  result.records = take(kept ? 0 : chunkRecordsBytes(problem));
  result.chunkStates = take(kept ? 0 : states);
  result.chunkGradients = take(states);
  result.anyStrong = std::max(size, result.size);
  result.size = result.anyStrong + 256;
  return result;
}

}  // namespace backward

size_t gradientsWorkspaceSize(const LinearProblem& problem, const Segments& segments) {
  return gradientsWorkspaceSize(problem, segments, false);
}

size_t gradientsWorkspaceSize(const LinearProblem& problem, const Segments& segments, bool joins) {
  return static_cast<size_t>(backward::workspaceOf(problem, segments, joins).size);
}

size_t gradientsOfKeptSize(const LinearProblem& problem, const Segments& segments) {
  return static_cast<size_t>(backward::workspaceOf(problem, segments, true, true).size);
}

Segments segmentsForScan(const LinearProblem& problem) {
  constexpr int64_t kLeastChunks = 16, kMost = 16;
  const int64_t chunks = std::max<int64_t>(backward::chunksOf(problem), 1),
                each = std::max((chunks + kMost - 1) / kMost, kLeastChunks);
  return {static_cast<int>((chunks + each - 1) / each), each * kChunkTokens};
}

}  // namespace seqpar::attn
