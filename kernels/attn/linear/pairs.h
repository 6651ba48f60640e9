// Two heads that one CTA of the sm_90 kernels processes: a pair that shares queries and keys
// (forward_sm90/transform_factors_sm90.cuh, backward/pair_sm90.h), or short heads with channel decays
// (forward_sm90/outputs_sm90.cuh, backward/heads_sm90.h). Compiles everywhere.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Whether two heads of the problem's shape, which share queries and keys, are a pair.
inline bool pairsHeads(const LinearProblem& problem) {
  return problem.gate != Gate::Channel && problem.dv == 64 && problem.heads / problem.qkHeads % 2 == 0;
}

constexpr int kWideColumns = 80;  ///< of v, of the wider heads of groups

/// Whether the backward's pass 3 on sm_90 processes chunks of groups of heads that share queries and keys
/// (backward/group_sm90.h) instead of pairs: there are enough chunks for the CTAs, and enough heads for the kernel that
/// stores the states of all chunks of each pair one after the other (backward/chunk_states_sm90.h).
inline bool formsGroups(const LinearProblem& problem) {
  constexpr int kBlock = 128, kLeastOfGroup = 4, kLeastHeads = 48, kLeastItems = 100;
  const int64_t items = problem.batch * problem.qkHeads * (problem.tokens / kChunkTokens);
  // With keys of more than 128 channels, a head counts as one for each 64 columns (GroupTask::parts()).
  const bool isLong = problem.dk > kBlock;
  const int panels = isLong ? problem.dv / 64 : 1, group = problem.heads / problem.qkHeads * panels;
  const bool powerOf2 = panels > 0 && (panels & (panels - 1)) == 0,
             fits = isLong ? problem.dv == panels * 64 && powerOf2 : problem.dv == 64 || problem.dv == kWideColumns;
  return problem.gate != Gate::Channel && fits && problem.dk <= 2 * kBlock && group >= kLeastOfGroup &&
         group % 2 == 0 && problem.batch * problem.heads * panels >= kLeastHeads && items >= kLeastItems;
}
/// The same for the problem's segments: not for many packed sequences of different lengths, because the kernel visits
/// as many chunks of each as the longest one has.
inline bool formsGroups(const LinearProblem& problem, const Segments& segments) {
  constexpr int64_t kMostVisits = 16;
  const auto chunksOf = [](int64_t tokens) { return (tokens + kChunkTokens - 1) / kChunkTokens; };
  return formsGroups(problem) &&
         allSegments(segments) * chunksOf(segments.tokens) <= kMostVisits * chunksOf(problem.tokens);
}

/// Heads that the kernel that stores the states of chunks processes in a CTA, if formsGroups().
inline int headsOfChain(const LinearProblem& problem) {
  return problem.dv > kWideColumns ? 1 : 2;
}

/// Whether a CTA of the sm_90 kernels with channel decays processes two heads of the problem's shape, each with its own
/// queries and keys.
inline bool joinsShortHeads(const LinearProblem& problem) {
  const auto isShort = [](int dimension) { return dimension > 32 && dimension <= 64; };
  return problem.gate == Gate::Channel && isShort(problem.dk) && isShort(problem.dv);
}

/// Whether pass 3 on the current device processes two heads at once. Only in builds with CUDA.
bool outputsArePaired(const LinearProblem& problem);
/// Whether the current device has the backward's kernels for pairs and groups of heads, and they support the problem's
/// type: they then process shapes for which pairsHeads() or formsGroups(). Only in builds with CUDA.
bool gradientsJoinHeads(const LinearProblem& problem);
/// Whether launchGradients() stores states of all chunks first, and its parts can be launched in two calls. Only in
/// builds with CUDA.
bool gradientsReadChunkStates(const LinearProblem& problem, const Segments& segments);
/// The heads that the backward's pass 3 processes at once on the current device. `alone`: no other rank needs this
/// rank's map. Only in builds with CUDA.
int gradientsAtOnce(const LinearProblem& problem, bool alone);

/// `joins`: gradientsJoinHeads()'s result, for which other memory is needed.
size_t gradientsWorkspaceSize(const LinearProblem& problem, const Segments& segments, bool joins);

}  // namespace seqpar::attn
