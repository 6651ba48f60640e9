// States after a segment of chunks from the map of the segment: FoldTask.
//
// Work      a CTA has kFoldRows channels and kFoldColumns columns of a matrix of states
// Roles     all threads alike: two channels and four columns each
// Tiles     all terms of the sums at once: kFoldTerms channels at most
// Smem      rows of the transition, columns of the states before: 48 KiB
// Barriers  __syncthreads_and() behind the loads
// Overlap   may start before the chains of the map end (griddepcontrol.wait), and lets the next chains start at once
#pragma once

#include "kernels/arch/cuda_types.h"
#include "kernels/arch/pdl.h"
#include "kernels/arch/ptx.h"
#include "kernels/attn/linear/delta/task.h"

namespace seqpar::attn::delta {

constexpr int kFoldRows = 32, kFoldColumns = 64, kFoldTerms = 128;
constexpr int kFoldThreads = kFoldRows / 2 * kFoldColumns / 4;
constexpr int kFoldBytes = 4 * kFoldTerms * (kFoldRows + kFoldColumns);

SEQPAR_BOTH_INLINE int foldTiles(int size, int tile) {
  return (size + tile - 1) / tile;
}
SEQPAR_BOTH_INLINE int64_t ctasOfFold(const FoldTask& task) {
  return task.count * foldTiles(task.dk, kFoldRows) * foldTiles(task.dv, kFoldColumns);
}

class FoldStates {
 public:
  SEQPAR_DEVICE static void run(const FoldTask& task) { FoldStates(task).sum(); }

 private:
  SEQPAR_DEVICE explicit FoldStates(const FoldTask& t) : task_(t) {
    int index = ptx::block();
    const int columns = foldTiles(t.dv, kFoldColumns), rows = foldTiles(t.dk, kFoldRows);
    column_ = index % columns * kFoldColumns;
    index /= columns;
    row_ = index % rows * kFoldRows;
    matrix_ = index / rows;
  }
  SEQPAR_DEVICE static float* left() { return reinterpret_cast<float*>(ptx::sharedMemory()); }
  SEQPAR_DEVICE static float* right() { return left() + kFoldRows * kFoldTerms; }

  /// Elements of kPartRows rows of a matrix, kWidth of each from column `first` on, which the threads load together:
  /// all loads are in flight before the first store to shared memory.
  template <int kPartRows, int kWidth>
  struct Part {
    static constexpr int kCount = kPartRows * kWidth / kFoldThreads;
    static_assert(kFoldThreads % kWidth == 0);
    float elements[kCount];
    /// Zeros where the matrix, which has `rows` x `columns`, has no elements.
    SEQPAR_DEVICE void load(const float* from, int rows, int columns, int first) {
      const int r = ptx::thread() / kWidth, c = first + ptx::thread() % kWidth;
      SEQPAR_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int row = r + i * (kFoldThreads / kWidth);
        const bool exists = row < rows && c < columns;
        elements[i] = exists ? from[int64_t{row} * columns + c] : 0;
      }
    }
    SEQPAR_DEVICE void store(float* to) const {
      SEQPAR_UNROLL
      for (int i = 0; i < kCount; ++i) to[i * kFoldThreads + ptx::thread()] = elements[i];
    }
    SEQPAR_DEVICE bool isFinite() const {
      float zero = 0;
      SEQPAR_UNROLL
      for (const float x : elements) zero += 0 * x;
      return zero == 0;
    }
  };
  SEQPAR_DEVICE void sum() const {
    ptx::griddepcontrolLaunchDependents();
    ptx::griddepcontrolWait();
    Part<kFoldRows, kFoldTerms> transition;
    Part<kFoldTerms, kFoldColumns> before;
    transition.load(task_.transition + (matrix_ * task_.dk + row_) * task_.dk, task_.dk - row_, task_.dk, 0);
    before.load(task_.before + matrix_ * task_.dk * task_.dv, task_.dk, task_.dv, column_);
    const int r = ptx::thread() / (kFoldColumns / 4) * 2, c = ptx::thread() % (kFoldColumns / 4) * 4;
    float sums[2][4];
    each(r, c, [&](int i, int j, const float* at) { sums[i][j] = at != nullptr ? *at : 0; });
    transition.store(left());
    before.store(right());
    ptx::syncthreadsAnd(before.isFinite()) ? add<true>(sums, r, c) : add<false>(sums, r, c);
    each(r, c, [&](int i, int j, float* at) {
      if (at != nullptr) *at = sums[i][j];
    });
  }
  SEQPAR_DEVICE static void loadFour(float (&to)[4], const float* from) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  }
  /// Calls call(row, column, address) for the thread's elements; NULL: it does not exist.
  template <class Each>
  SEQPAR_DEVICE void each(int r, int c, const Each& call) const {
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int row = row_ + r + i, column = column_ + c + j;
        const bool exists = row < task_.dk && column < task_.dv;
        call(i, j, exists ? task_.states + (matrix_ * task_.dk + row) * task_.dv + column : nullptr);
      }
    }
  }
  /// kExact: for finite states. Else a zero of the transition forgets.
  template <bool kExact>
  SEQPAR_DEVICE static void add(float (&sums)[2][4], int r, int c) {
    for (int k = 0; k < kFoldTerms; k += 4) {
      float rows[2][4];
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) loadFour(rows[i], left() + (r + i) * kFoldTerms + k);
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        float terms[4];
        loadFour(terms, right() + (k + e) * kFoldColumns + c);
        SEQPAR_UNROLL
        for (int i = 0; i < 2; ++i) {
          SEQPAR_UNROLL
          for (int j = 0; j < 4; ++j) {
            const float term = rows[i][e] * terms[j];
            sums[i][j] += kExact || rows[i][e] != 0 ? term : 0;
          }
        }
      }
    }
  }

  const FoldTask& task_;
  int row_, column_;
  int64_t matrix_;
};

}  // namespace seqpar::attn::delta
