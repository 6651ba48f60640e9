// Products of a chunk that both consumer warpgroups of the gradients' kernels share: A and dA (each warpgroup computes
// the columns of 32 tokens), and products with these. With two heads, each warpgroup computes those of its head.
#pragma once

#include "kernels/attn/linear/backward/images_sm90.h"
#include "kernels/attn/linear/backward/rows_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// 32 columns, starting at 32 * group, of a matrix of 64 x 64 tokens, in accumulators; with two heads all columns.
template <int kHeads>
using ScoresOf = float[4 * kHeads][4];
using Scores = ScoresOf<1>;

/// Operands of a chunk's products, all in shared memory.
template <class T>
struct ChunkOperands {
  const T *q, *k, *v, *dOut;  ///< tiles; q and k as operands of A and dA
  const T* keys;              ///< as operand of the state's gradient
  const T *before, *after;    ///< S and E
  T *dA, *a;                  ///< destinations of these matrices
};

template <class T, int kHeads = 1>
struct ChunkProducts {
  using P = Half;
  using Part = P::Part;
  using Scores = ScoresOf<kHeads>;
  static constexpr int kSteps = kBlock / 16 / kHeads;  ///< over keys or values

  /// Computes the matrices, and dk from the state's gradient. q and k are of type Image.
  template <class Image = T>
  SEQPAR_DEVICE static void first(const ChunkOperands<T>& of, Scores& dA, Scores& a, Part& dk, const P& me) {
    const int row = kHeads == 1 ? me.group * 32 * kPanel : 0;
    const Operand dOut{ofHead(of.dOut, me), kTilePanelBytes}, v{ofHead(of.v, me), kTilePanelBytes};
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(
        dA, dOut, kChunk, Operand{ofHead(of.v, me) + row}, kChunk, false);
    warpgroup::multiplyAll<Image, Terms::AlongRows, Terms::AlongRows, kSteps>(
        a, Operand{ofHead(of.q, me)}, kChunk, Operand{ofHead(of.k, me) + row}, kChunk, false);
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(
        dk, v, kChunk, Operand{of.after + me.firstColumn * kPanel}, kBlock, false);
    warpgroup::commit();
  }
  /// dq (+)= the state's term; the caller commits. A zero-initialized accumulator is live from loop entry. Where
  /// registers are scarce, clear it just before the wgmma and accumulate.
  SEQPAR_DEVICE static void queriesOfState(const ChunkOperands<T>& of, Part& dq, const P& me, bool add = false) {
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(
        dq, Operand{ofHead(of.dOut, me), kTilePanelBytes}, kChunk, Operand{of.before + me.firstColumn * kPanel}, kBlock,
        add);
  }

  /// A alone: a group. q and k are of type Image.
  template <class Image>
  SEQPAR_DEVICE static void scores(const ChunkOperands<T>& of, Scores& a, const P& me) {
    static_assert(kHeads > 1);
    warpgroup::arrive();
    warpgroup::multiplyAll<Image, Terms::AlongRows, Terms::AlongRows, kSteps>(a, Operand{ofHead(of.q, me)}, kChunk,
                                                                              Operand{ofHead(of.k, me)}, kChunk, false);
    warpgroup::commit();
  }
  /// dA, and dk from the state's gradient: a group.
  SEQPAR_DEVICE static void ofValues(const ChunkOperands<T>& of, Scores& dA, Part& dk, const P& me) {
    static_assert(kHeads > 1);
    const Operand v{ofHead(of.v, me)};
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(dA, Operand{ofHead(of.dOut, me)}, kChunk, v,
                                                                          kChunk, false);
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(
        dk, v, kChunk, Operand{of.after + me.firstColumn * kPanel}, kBlock, false);
    warpgroup::commit();
  }
  /// dv from the state's gradient; the caller commits.
  SEQPAR_DEVICE static void keysOfState(const ChunkOperands<T>& of, Part& dv, const P& me) {
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, kSteps>(
        dv, Operand{ofHead(of.keys, me)}, kChunk, Operand{stateColumns(of.after, me)}, kBlock, false);
  }

  /// dv, then the terms of dq and dk from the matrices: two groups.
  SEQPAR_DEVICE static void second(const ChunkOperands<T>& of, Part& dq, Part& dk, Part& dv, const P& me) {
    const Operand dA{of.dA}, a{of.a};
    keysOfState(of, dv, me);
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(dv, a, kChunk, Operand{me.columnsOf(of.dOut, kTilePanel)},
                                                           kChunk, true);
    warpgroup::commit();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, 4>(dq, dA, kChunk, Operand{me.columnsOf(of.k, kTilePanel)},
                                                                kChunk, true);
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(dk, dA, kChunk, Operand{me.columnsOf(of.q, kTilePanel)},
                                                           kChunk, true);
    warpgroup::commit();
  }

  /// Adds the terms from the matrices' remainders to all three, after second() is complete.
  SEQPAR_DEVICE static void third(const ChunkOperands<T>& of, Part& dq, Part& dk, Part& dv, const P& me) {
    const Operand dA{of.dA}, a{of.a};
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(dv, a, kChunk, Operand{me.columnsOf(of.dOut, kTilePanel)},
                                                           kChunk, true);
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, 4>(dq, dA, kChunk, Operand{me.columnsOf(of.k, kTilePanel)},
                                                                kChunk, true);
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(dk, dA, kChunk, Operand{me.columnsOf(of.q, kTilePanel)},
                                                           kChunk, true);
    warpgroup::commit();
  }

  /// Adds the terms from the matrices; for fp16 images, the terms from dA. The caller commits.
  template <class Image = Fp16>
  SEQPAR_DEVICE static void addImagesOfKeys(Part& dq, const ChunkOperands<T>& of, const P& me) {
    warpgroup::multiplyAll<Image, Terms::AlongRows, Terms::Rows, 4>(
        dq, Operand{of.dA}, kChunk, Operand{me.columnsOf(of.k, kTilePanel)}, kChunk, true);
  }
  template <class Image = Fp16>
  SEQPAR_DEVICE static void addImagesOfQueries(Part& dk, const ChunkOperands<T>& of, const P& me) {
    warpgroup::multiplyAll<Image, Terms::Rows, Terms::Rows, 4>(dk, Operand{of.dA}, kChunk,
                                                               Operand{me.columnsOf(of.q, kTilePanel)}, kChunk, true);
  }
  SEQPAR_DEVICE static void addValues(const T* a, const T* dOut, Part& dv, const P& me) {
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(dv, Operand{a}, kChunk,
                                                           Operand{me.columnsOf(dOut, kTilePanel)}, kChunk, true);
  }

  /// The head's part of a tile, if there are two.
  template <class Numbers>
  SEQPAR_DEVICE static Numbers* ofHead(Numbers* tile, const P& me) {
    return kHeads == 1 ? tile : tile + me.group * kTilePanel;
  }
  /// The warpgroup's columns of a state as an operand with keys as terms.
  SEQPAR_DEVICE static const T* stateColumns(const T* state, const P& me) {
    return kHeads == 1 ? me.columnsOf(state, kMatrixPanel) : state + me.firstColumn * kPanel;
  }

  /// Stores dA of each token with itself, on the threads that hold it.
  SEQPAR_DEVICE static void keepDiagonal(float* own, const Scores& dA, float scale, const P& me) {
    const int warpIndex = me.inGroup / 32, group = me.thread / warpgroup::kThreads;  // recomputed to save registers
    if constexpr (kHeads == 1) {
      if (warpIndex / 2 != group || me.g / 2 != me.c) return;
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float even = warpIndex % 2 == 0 ? dA[r][r * 2] : dA[2 + r][r * 2],
                    odd = warpIndex % 2 == 0 ? dA[r][r * 2 + 1] : dA[2 + r][r * 2 + 1];
        own[me.row + r * 8] = scale * (me.g % 2 == 0 ? even : odd);
      }
    } else {
      if (me.g / 2 != me.c) return;
      SEQPAR_UNROLL
      for (int n = 0; n < 4 * kHeads; ++n) {
        const int r = n % 2;
        if (n / 2 == warpIndex) own[me.row + r * 8] = scale * (me.g % 2 == 0 ? dA[n][r * 2] : dA[n][r * 2 + 1]);
      }
    }
  }

  using Words = uint32_t[2 * kHeads][4];  ///< this thread's elements of a matrix, rounded
  /// Zeroes both matrices above the diagonal, and the diagonal of dA.
  SEQPAR_DEVICE static void clearUpper(Scores& dA, Scores& a, const P& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4 * kHeads; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int t = queryOf(e, me), s = keyOf(n, e, me);
        if (s >= t) dA[n][e] = 0;
        if (s > t) a[n][e] = 0;
      }
    }
  }
  /// Zeroes a matrix above the diagonal, and the diagonal too if `from` is 0.
  SEQPAR_DEVICE static void clearAbove(Scores& x, int from, const P& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4 * kHeads; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (keyOf(n, e, me) >= queryOf(e, me) + from) x[n][e] = 0;
      }
    }
  }
  SEQPAR_DEVICE static void packHalvesOf(Words& words, const Scores& scores, float scale) {
    SEQPAR_UNROLL
    for (int n = 0; n < 2 * kHeads; ++n) {
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = scores[n * 2 + i / 2] + i % 2 * 2;
        words[n][i] = packHalves(pair[0] * scale, pair[1] * scale);
      }
    }
  }
  SEQPAR_DEVICE static void pack(Words& words, Words& rests, const Scores& scores) {
    SEQPAR_UNROLL
    for (int n = 0; n < 2 * kHeads; ++n) {
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = scores[n * 2 + i / 2] + i % 2 * 2;
        words[n][i] = ptx::pack<T>(pair[0], pair[1]);
        rests[n][i] = restOf<T>(pair[0], pair[1], words[n][i]);
      }
    }
  }
  SEQPAR_DEVICE static void store(T* matrix, const Words& words, const P& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4 * kHeads; n += 2) {
      const int row = me.matrixRows().row(me.warpIndex * 16), unit = firstUnit(me) + n + me.matrixRows().half();
      ptx::stmatrixX4(unitOf<kChunk>(matrix, row, unit), words[n / 2]);
    }
  }
  SEQPAR_DEVICE static void store(T* matrix, const Scores& scores, const P& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4 * kHeads; n += 2) {
      uint32_t words[4];
      packTiles<T>(words, scores, n);
      const int row = me.matrixRows().row(me.warpIndex * 16), unit = firstUnit(me) + n + me.matrixRows().half();
      ptx::stmatrixX4(unitOf<kChunk>(matrix, row, unit), words);
    }
  }

  /// Element e of tile n: query t, key s.
  SEQPAR_DEVICE static int queryOf(int e, const P& me) { return me.row + e / 2 * 8; }
  SEQPAR_DEVICE static int keyOf(int n, int e, const P& me) { return firstUnit(me) * 8 + n * 8 + me.c * 2 + e % 2; }
  /// The warpgroup's first unit of 8 keys.
  SEQPAR_DEVICE static int firstUnit(const P& me) { return kHeads == 1 ? me.group * 4 : 0; }
  /// Tokens from its key to its query; negative above the diagonal.
  SEQPAR_DEVICE static int distance(int n, int e, const P& me) {
    return me.row - me.group * 32 - me.c * 2 + (e / 2 * 8 - n * 8 - e % 2);
  }
  /// Sums eight values over the lanes with the same c; lane g gets value g.
  SEQPAR_DEVICE static float sumOfLanes(float (&values)[8], const P& me) {
    SEQPAR_UNROLL
    for (int count = 4; count > 0; count /= 2) {
      const bool upper = (me.g & count) != 0;
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i >= count) continue;
        const float kept = upper ? values[count + i] : values[i], given = upper ? values[i] : values[count + i];
        values[i] = kept + ptx::shflXor(given, count * 4);
      }
    }
    return values[0];
  }
};

}  // namespace seqpar::attn::backward::sm90
