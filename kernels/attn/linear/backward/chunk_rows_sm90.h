// Rows of the tiles of a chunk in shared memory, scaled and cleared in place (chunk_states_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ScaledRows {
  /// kRows adjacent rows of a lane's unit, from `first` on. Rows with a factor of 0 become 0, whatever their elements.
  template <int kRows>
  SEQPAR_DEVICE static void scale(T* panel, const float* factors, int first, int lane) {
    T* const rows = panel + first * kPanel;
    const int unit = lane % 8 ^ first % 8;  // `first` is a multiple of kRows
    uint32_t words[kRows][4], by[kRows];
    SEQPAR_UNROLL
    for (int i = 0; i < kRows; ++i) ptx::load(words[i], rows + i * kPanel + (unit ^ i) * 8);
    SEQPAR_UNROLL
    for (int i = 0; i < kRows; i += 4) ptx::load(reinterpret_cast<uint32_t(&)[4]>(by[i]), factors + first + i);
    SEQPAR_UNROLL
    for (int i = 0; i < kRows; ++i) {
      multiply(words[i], asFloat(by[i]));
      ptx::store(rows + i * kPanel + (unit ^ i) * 8, words[i]);
    }
  }
  SEQPAR_DEVICE static void multiply(uint32_t (&words)[4], float factor) {
    SEQPAR_UNROLL
    for (uint32_t& word : words) {
      const uint32_t scaled = ptx::pack<T>(ptx::lowOf<T>(word) * factor, ptx::highOf<T>(word) * factor);
      word = factor == 0 ? 0 : scaled;
    }
  }
  /// The same for a unit of a row.
  SEQPAR_DEVICE static void scaleUnit(T* panel, const float* factors, int row, int unit) {
    T* at = unitOf<kChunk>(panel, row, unit);
    uint32_t words[4];
    ptx::load(words, at);
    multiply(words, factors[row]);
    ptx::store(at, words);
  }
  /// Zeroes the rows from `valid` on, counted from the lane's first one: they may belong to another sequence.
  SEQPAR_DEVICE static void clear(T* rows, int valid, int lane) {
    constexpr uint32_t kZeros[4] = {0, 0, 0, 0};
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (i >= valid) ptx::store(rows + i * kPanel + lane % 8 * 8, kZeros);
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
