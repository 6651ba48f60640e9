// Runs: regularly spaced blocks of tokens of one rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seqpar/layout.h"

namespace seqpar {

inline int64_t tokensOf(const seqparLayoutRun_t& run) {
  return run.length * run.count;
}

/// One past the run's last token, as an index in the sequence.
inline int64_t globalEnd(const seqparLayoutRun_t& run) {
  return run.global + (run.count - 1) * run.stride + run.length;
}

/// The sequence index of the rank's local token `local`, which is in the run.
inline int64_t globalOf(const seqparLayoutRun_t& run, int64_t local) {
  const int64_t index = local - run.local;
  return run.global + index / run.length * run.stride + index % run.length;
}

/// The rank's local index of the sequence's token `global`, which is in the run.
inline int64_t localOf(const seqparLayoutRun_t& run, int64_t global) {
  if (run.count == 1) return run.local + global - run.global;
  const int64_t index = global - run.global;
  return run.local + index / run.stride * run.length + index % run.stride;
}

/// Appends a run at the local index after the rank's other runs: nothing if it is empty, and a longer last block if it
/// is adjacent to that block.
void appendRun(std::vector<seqparLayoutRun_t>& runs, seqparLayoutRun_t run);

/// The tokens with local indices from the first bound up to, not including, the second; renumbered from 0.
std::vector<seqparLayoutRun_t> clipped(std::span<const seqparLayoutRun_t> runs, int64_t begin, int64_t end);

/// The number of tokens before `global` in the sequence.
int64_t countBefore(std::span<const seqparLayoutRun_t> runs, int64_t global);

}  // namespace seqpar
