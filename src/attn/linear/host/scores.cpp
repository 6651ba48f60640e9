#include "attn/linear/host/scores.h"

#include <algorithm>

#include "attn/linear/host/triangle.h"
#include "attn/linear/host/vector.h"
#include "base/sgemm.h"

namespace seqpar::attn::linear {

Scores::Scores(size_t dk, size_t width, bool gradients, Floats& memory) : dk_(dk), width_(width) {
  const size_t keys = kChunk * dk;
  const bool channels = width > 1;
  qd_ = memory.take(keys);
  kd_ = memory.take(keys);
  scores_ = memory.take(kChunk * kChunk);
  decayMatrix_ = memory.take(channels ? 0 : kChunk * kChunk);
  total_ = memory.take(dk);
  row_ = memory.take(dk);
  products_ = memory.take(channels ? kLevels * kLeaves * dk : 0);
  if (gradients) levels_ = memory.take(channels ? kLevels * 2 * keys : 0);
}

void Scores::decayKeys(size_t rows, const float* k, const float* decays) {
  decayToEnd(decays, rows, width_, dk_, k, kd_, total_);
}

void Scores::decayQueries(size_t rows, const float* q, const float* decays) {
  decayFromStart(decays, rows, width_, dk_, q, qd_, total_);
}

void Scores::compute(size_t rows, const float* q, const float* k, const float* decays, const Load& load) {
  if (width_ > 1) {
    byChannel(rows, q, k, decays, load);
  } else {
    if (load) load(0, rows);
    byToken(rows, q, k, decays);
  }
}

// Products of decays in compute()'s order, so that the results are bitwise equal.
void Scores::decayQueriesAsScored(size_t rows, const float* q, const float* decays) {
  if (width_ == 1) return decayQueries(rows, q, decays);
  for (size_t begin = 0; begin < rows; begin += kLeaf) {
    const size_t at = begin * dk_;
    decayFromStart(decays + at, std::min(kLeaf, rows - begin), dk_, dk_, q + at, qd_ + at, product(0, begin));
  }
  size_t size = kLeaf;
  for (size_t level = 0; level < kLevels; ++level, size *= 2) {
    for (size_t even = 0; even < rows; even += 2 * size) mergeQueries(rows, level, even, size);
  }
}

/// Merges the odd block of a pair, at even + size, into the even one: its queries, and the decay over both.
void Scores::mergeQueries(size_t rows, size_t level, size_t even, size_t size) {
  const size_t odd = even + size;
  float* const both = level + 1 < kLevels ? product(level + 1, even) : total_;
  std::copy_n(product(level, even), dk_, both);
  if (odd >= rows) return;
  multiplyEach(product(level, even), std::min(size, rows - odd), dk_, qd_ + odd * dk_);
  multiplyEach(product(level, odd), 1, dk_, both);
}

void Scores::byToken(size_t rows, const float* q, const float* k, const float* decays) {
  decayMatrix(decays, rows, decayMatrix_, kChunk);
  multiplyToLower(rows, dk_, {q, dk_}, {k, dk_, true}, scores_, kChunk);
  forgetEach(decayMatrix_, rows, rows, kChunk, scores_);
  decayKeys(rows, k, decays);
  decayQueries(rows, q, decays);
}

void Scores::byChannel(size_t rows, const float* q, const float* k, const float* decays, const Load& load) {
  const size_t dk = dk_;
  std::fill_n(scores_, rows * kChunk, 0.0f);
  for (size_t begin = 0; begin < rows; begin += kLeaf) {
    const size_t count = std::min(kLeaf, rows - begin), at = begin * dk;
    if (load) load(begin, count);
    leafScores(q + at, k + at, decays + at, count, dk, scores_ + begin * kChunk + begin, kChunk, row_);
    decayFromStart(decays + at, count, dk, dk, q + at, qd_ + at, product(0, begin));
    decayToEnd(decays + at, count, dk, dk, k + at, kd_ + at, row_);
  }
  size_t size = kLeaf;
  for (size_t level = 0; level < kLevels; ++level, size *= 2) {
    for (size_t even = 0; even < rows; even += 2 * size) {
      const size_t odd = even + size;
      if (odd < rows) {
        const size_t count = std::min(size, rows - odd);
        float *const queries = qd_ + odd * dk, *const keys = kd_ + even * dk;
        float* const block = scores_ + odd * kChunk + even;
        if (size < kTriangle) {
          blockScores(queries, count, keys, size, dk, block, kChunk);
        } else {
          multiply(count, size, dk, {queries, dk}, {keys, dk, true}, false, block, kChunk);
        }
        if (levels_ != nullptr) {
          std::copy_n(queries, count * dk, levelQueries(level) + odd * dk);
          std::copy_n(keys, size * dk, levelKeys(level) + even * dk);
        }
        multiplyEach(product(level, odd), size, dk, keys);
      }
      mergeQueries(rows, level, even, size);
    }
  }
}

void Scores::gradients(size_t rows, const float* q, const float* k, const float* decays, float* dScores, float* dq,
                       float* dk) {
  if (width_ > 1) {
    gradientsByChannel(rows, q, k, decays, dScores, dq, dk);
  } else {
    gradientsByToken(rows, q, k, decays, dScores, dq, dk);
  }
}

void Scores::gradientsByToken(size_t rows, const float* q, const float* k, const float* decays, float* dScores,
                              float* dq, float* dk) {
  forgetEach(decayMatrix_, rows, rows, kChunk, dScores);
  float product = 1;
  for (size_t t = 0; t < rows; ++t) {
    product *= decays[t];
    forgetRow(product, dk_, dq + t * dk_);
  }
  product = 1;
  for (size_t t = rows; t-- > 0;) {
    forgetRow(product, dk_, dk + t * dk_);
    product *= decays[t];
  }
  multiplyLower(rows, dk_, {dScores, kChunk}, {k, dk_}, true, dq, dk_);
  multiplyLower(rows, dk_, {dScores, kChunk, true}, {q, dk_}, true, dk, dk_);
}

// From the root of the tree to its leaves: each pair of blocks propagates the gradients of its decayed queries and
// keys.
void Scores::gradientsByChannel(size_t rows, const float* q, const float* k, const float* decays, const float* dScores,
                                float* dq, float* dk) {
  size_t size = kChunk / 2;
  for (size_t level = kLevels; level-- > 0; size /= 2) {
    for (size_t even = 0; even + size < rows; even += 2 * size) {
      const size_t odd = even + size, count = std::min(size, rows - odd);
      const Factor weights{dScores + odd * kChunk + even, kChunk};
      forgetRows(product(level, even), count, dk_, dq + odd * dk_);
      multiplyForgetting(count, dk_, size, weights, {levelKeys(level) + even * dk_, dk_}, true, dq + odd * dk_, dk_);
      forgetRows(product(level, odd), size, dk_, dk + even * dk_);
      multiplyForgetting(size, dk_, count, {weights.data, kChunk, true}, {levelQueries(level) + odd * dk_, dk_}, true,
                         dk + even * dk_, dk_);
    }
  }
  for (size_t begin = 0; begin < rows; begin += kLeaf) {
    const size_t at = begin * dk_;
    leafGradients(q + at, k + at, decays + at, dScores + begin * kChunk + begin, kChunk, std::min(kLeaf, rows - begin),
                  dk_, dq + at, dk + at, row_);
  }
}

}  // namespace seqpar::attn::linear
