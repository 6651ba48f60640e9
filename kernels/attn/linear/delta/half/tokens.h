// Betas, lengths and decays of a chunk's tokens, in shared memory.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/delta/half/swizzled.h"

namespace seqpar::attn::delta::half {

/// The end of a kernel that may overlap with the previous one: the next kernel may only start after both.
SEQPAR_DEVICE void endOverlap(const Task& task) {
  if (task.overlaps && ptx::block() == 0) ptx::griddepcontrolWait();
}

/// The decay of a logarithm; 0 below 2^-126.
SEQPAR_DEVICE float decayOfLog(float log) {
  return ptx::ex2Approx(log * 1.4426950408889634F);
}

SEQPAR_DEVICE float betaOf(const Task& task, int64_t batch, const Chunk& chunk, int head, int t) {
  if (t >= chunk.rows) return 0;
  return loadNumber(task.beta.data, task.betaType, rowOf(task.beta, batch, chunk.first + t, head));
}
SEQPAR_DEVICE float decayOf(const Task& task, int64_t batch, const Chunk& chunk, int head, int t) {
  if (t >= chunk.rows || task.width == 0) return 1;
  return decayOfLog(loadNumber(task.gates.data, task.gateType, rowOf(task.gates, batch, chunk.first + t, head)));
}

/// The sum of the squares of row t. Four threads have a row, and `part` is the thread's number among them.
template <class T, class Rows>
SEQPAR_DEVICE float squaresOf(const Rows& rows, int t, int part) {
  float squares = 0;
  SEQPAR_UNROLL
  for (int unit = part; unit < kKeys / 8; unit += 4) {
    uint32_t words[4];
    ptx::load(words, rows.unit(t, unit));
    SEQPAR_UNROLL
    for (const uint32_t word : words) {
      const float low = ptx::lowOf<T>(word), high = ptx::highOf<T>(word);
      squares += low * low + high * high;
    }
  }
  squares += ptx::shflXor(squares, 1);
  return squares + ptx::shflXor(squares, 2);
}

/// norms[t] = scale, divided by the length of row t if rows are normalized. 256 threads.
template <class T, class Rows>
SEQPAR_DEVICE void loadNorms(float* norms, const Rows& rows, bool normalize, float scale) {
  const int t = ptx::thread() / 4, part = ptx::thread() % 4;
  const float squares = normalize ? squaresOf<T>(rows, t, part) : 0;
  if (part == 0) norms[t] = scale * (normalize ? 1 / sqrtf(squares + 1e-6F) : 1);
}

/// Decays of blocks of 16 tokens from `decay`; then a barrier, and the second function. The first 64 threads.
SEQPAR_DEVICE void decayWithinBlocks(const TokenMemory& m) {
  const int j = ptx::thread(), first = j / kBlock * kBlock;
  if (j >= kRows) return;
  float run = 1, fromStart = 1;
  SEQPAR_UNROLL
  for (int n = 0; n < kBlock; ++n) {
    const int i = first + n;
    const float decay = m.decay[i];
    if (i <= j) fromStart *= decay;
    if (i > j) run *= decay;
    if (i >= j) m.within[i * kBlock + j - first] = run;
  }
  m.run[j] = fromStart;
  m.suffix[j] = run;
  if (j == first + kBlock - 1) m.totals[j / kBlock] = fromStart;
}
SEQPAR_DEVICE void decayFromEnds(const TokenMemory& m) {
  const int t = ptx::thread();
  if (t >= kRows) return;
  float in = m.run[t], out = m.suffix[t];
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks; ++n) {
    if (n < t / kBlock) in *= m.totals[n];
    if (n > t / kBlock) out *= m.totals[n];
  }
  m.in[t] = in;
  m.out[t] = out;
}
}  // namespace seqpar::attn::delta::half
