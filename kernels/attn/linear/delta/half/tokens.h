// Betas, lengths and decays of a chunk's tokens, in shared memory.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/arch/predicated.h"
#include "kernels/attn/linear/delta/half/swizzled.h"

namespace seqpar::attn::delta::half {

/// The end of a kernel that may overlap with the previous one: the next kernel may only start after both.
SEQPAR_DEVICE void endOverlap(const Task& task) {
  if (task.overlaps && ptx::block() == 0) ptx::griddepcontrolWait();
}

/// Divisions take 20 instructions.
SEQPAR_DEVICE int headsOfKey(const Task& task) {
  return task.heads == task.keyHeads ? 1 : task.heads / task.keyHeads;
}
SEQPAR_DEVICE int keyHeadOf(const Task& task, int head) {
  return task.heads == task.keyHeads ? head : head / headsOfKey(task);
}
/// The CTA's record, one of `heads` heads. Heads first: their rows of a token are adjacent.
struct RecordPlace {
  int head, number;
  int64_t batch;
  SEQPAR_DEVICE RecordPlace(const Task& task, int heads) {
    const auto index = static_cast<uint32_t>(ptx::block()), all = static_cast<uint32_t>(heads);
    const uint32_t row = index / all, entry = task.batch == 1 ? 0 : row / static_cast<uint32_t>(task.count);
    head = static_cast<int>(index - row * all);
    number = static_cast<int>(row) - static_cast<int>(entry) * task.count;
    batch = entry;
  }
};

/// The decay of a logarithm; 0 below 2^-126.
SEQPAR_DEVICE float decayOfLog(float log) {
  return ptx::ex2Approx(log * 1.4426950408889634F);
}

SEQPAR_DEVICE float decayOf(const Task& task, int64_t batch, const Chunk& chunk, int head, int t) {
  if (t >= chunk.rows || task.width == 0) return 1;
  return decayOfLog(loadNumber(task.gates.data, task.gateType, rowOf(task.gates, batch, chunk.first + t, head)));
}
/// Loads a number's bits if `loads`, without a branch; numberOf() converts them.
SEQPAR_DEVICE uint32_t loadBitsIf(const void* data, int type, int64_t index, bool loads) {
  const bool isFloat = type == seqparFloat32;
  const char* const from = static_cast<const char*>(data) + index * (isFloat ? 4 : 2);
  uint32_t bits = 0;
  ptx::loadGlobalIf(bits, reinterpret_cast<const uint32_t*>(from), loads && isFloat);
  ptx::loadGlobalIf(bits, reinterpret_cast<const uint16_t*>(from), loads && !isFloat);
  return bits;
}
SEQPAR_DEVICE float numberOf(uint32_t bits, int type) {
  if (type == seqparFloat32) return asFloat(bits);
  return type == seqparBfloat16 ? bfloatToFloat(bits) : halfToFloat(bits);
}
/// Beta of token ptx::thread() of the chunk, and its decay, in flight together.
struct TokenGates {
  uint32_t beta, log = 0;
  SEQPAR_DEVICE TokenGates(const Task& task, int64_t batch, const Chunk& chunk, int head, bool decays) {
    const int t = threadAgain();
    const bool exists = t < chunk.rows;
    beta = loadBitsIf(task.beta.data, task.betaType, rowOf(task.beta, batch, chunk.first + t, head), exists);
    if (!decays) return;
    log = loadBitsIf(task.gates.data, task.gateType, rowOf(task.gates, batch, chunk.first + t, head),
                     exists && task.width != 0);
  }
  SEQPAR_DEVICE float betaOf(const Task& task, const Chunk& chunk) const {
    return threadAgain() < chunk.rows ? numberOf(beta, task.betaType) : 0;
  }
  SEQPAR_DEVICE float decayOf(const Task& task, const Chunk& chunk) const {
    return threadAgain() < chunk.rows && task.width != 0 ? decayOfLog(numberOf(log, task.gateType)) : 1;
  }
};

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

/// Decays of blocks of 16 tokens from `decay`, which a warp has stored for its tokens; then a barrier, and the second
/// function. The first 64 threads.
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
