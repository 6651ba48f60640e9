// All gradients of a segment, in one CTA. A sweep forward keeps the states before its chunks in scratch (L2); then the
// chunks are gone through in reverse with the state's gradient in registers. With S the state before a chunk, E the
// gradient of the state after it, b the decays' logarithms added up from the chunk's beginning to its end at B:
//
//     dq_t = scale e^b_t (S dO_t)  + sum_(s <= t) dA_ts e^(b_t - b_s) k_s      dA_ts = scale dO_t . v_s
//     dk_s = e^(B - b_s) (E v_s)   + sum_(t >= s) dA_ts e^(b_t - b_s) q_t
//     dv_s = E^T (e^(B - b_s) k_s) + sum_(t >= s) A_ts dO_t                     A_ts = scale q_t . e^(b_t - b_s) k_s
//     dlog(a)_t = sum_(s >= t) (q_s dq_s - k_s dk_s) + rowsum(state after the chunk * E)
//
// (ZeCO, arXiv 2507.01004, Algorithm 3; the last line is GLA's, arXiv 2312.06635, with the carry taken anew from each
// chunk's states.) What a token has of itself cancels in the last line and is left out of it.
#pragma once

#include "kernels/attn/linear/backward/sweep.h"

namespace seqpar::attn::backward {

constexpr int kTokenTiles = kTiles * (kTiles + 1) / 2;  ///< tiles of the lower triangle of 64 x 64

template <class T, int KD, int VD>
struct GradientsMemory {
  T q[kChunk * (KD + 8)], k[kChunk * (KD + 8)], v[kChunk * (VD + 8)], dOut[kChunk * (VD + 8)];
  T before[KD * (VD + 8)], after[KD * (VD + 8)];  ///< the states S and E
  alignas(16) T
      nearKeys[kChunk * (KD + 8)];  ///< channel gates: q or k as the other tile of 32 tokens sees it; others: scaled q
  T farKeys[kChunk * (KD + 8)];     ///< channel gates: as the other half of the chunk sees it
  T a[kChunk * kTokenStride], dA[kChunk * kTokenStride];
  float diagonals[kTiles * Columns<KD>::kParts][16 * 16];  ///< of A, from each part of the channels
  float totals[kTiles * KD];                               ///< log-decays of tiles of tokens
  float toBegin[kTiles * KD];                              ///< decay from the chunk's beginning to the tile's
  float toEnd[kTiles * KD];                                ///< from the tile's end to the chunk's
  float chunkDecay[KD], decay1[KD], decay2[KD];            ///< of the chunk, of its tiles 1 and 2
  float carry[2][2 * KD];         ///< rowsum(state * E) at the chunk's end, for this chunk and the next one
  float gateTotals[kTiles * KD];  ///< sums of q dq - k dk over tiles
  float ownTerms[kChunk];         ///< dA of a token with itself
  float sums[kChunk];             ///< others' log-decays
  float gateTerms[Columns<KD>::kParts][kChunk];
  uint8_t forgets[2][kChunk];  ///< of this chunk and the next one
};

template <class T, int KD, int VD, bool kChannel>
struct GradientsKernel {
  using Share = Shares<KD, VD>;
  using Memory = GradientsMemory<T, KD, VD>;
  using Gates = ChannelGates<KD>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8, kThreads = Columns<KD>::kThreads, kWarps = warpsOf(KD);
  using Part = float[kTiles8][4];  ///< a warp's part of 64 x KD

  static_assert(sizeof(SweepMemory<T, KD, VD, kChannel>) <= sizeof(Memory));
  static_assert(Gates::kBytes <= 2 * sizeof(Memory::nearKeys));  // gates arrive where scaled keys will be

  SEQPAR_WARP static void fetch(const Task& task, const Item<T>& item, int chunk, const T* states, Memory& memory,
                                int thread) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    if constexpr (kChannel) {
      Gates::fetch(memory.nearKeys, task, item, token, thread);  // needed first
      warp::commitCopies();
    }
    fetchTile<VD>(memory.v, item.v + token * task.v.token, task.v.token, rows, item.values, thread);
    fetchTile<VD>(memory.dOut, item.dOut + token * task.dOut.token, task.dOut.token, rows, item.values, thread);
    fetchTile<KD>(memory.q, item.q + token * task.q.token, task.q.token, rows, item.keys, thread);
    fetchTile<KD>(memory.k, item.k + token * task.k.token, task.k.token, rows, item.keys, thread);
    const T* from = states + int64_t{chunk} * KD * VD;
    for (int unit = thread; unit < KD * VD / 8; unit += kThreads) {
      const int row = unit / (VD / 8), column = unit % (VD / 8) * 8;
      warp::copyAsync(memory.before + row * (VD + 8) + column, from + row * VD + column, true);
    }
    warp::commitCopies();
  }

  SEQPAR_WARP static void prefetch(const Task& task, const Item<T>& item, int chunk, const T* states, int thread) {
    if (chunk < 0) return;
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    prefetchTile<KD>(item.q + token * task.q.token, task.q.token, rows, thread);
    prefetchTile<KD>(item.k + token * task.k.token, task.k.token, rows, thread);
    prefetchTile<VD>(item.v + token * task.v.token, task.v.token, rows, thread);
    prefetchTile<VD>(item.dOut + token * task.dOut.token, task.dOut.token, rows, thread);
    if constexpr (kChannel) {
      Gates::prefetch(task, item, token, thread);
    } else if (task.gate == Gate::Token && thread < rows) {
      warp::prefetch(reinterpret_cast<const float*>(item.gates) + (token + thread) * task.gates.token);
    }
    for (int line = thread; line < KD * VD / 64; line += kThreads) {
      warp::prefetch(states + int64_t{chunk} * KD * VD + line * 64);
    }
  }

  /// part += left[tile's tokens] right, for `Terms` terms: the state's rows are the right operand's columns.
  template <int kTerms>
  SEQPAR_WARP static void multiplyByState(Part& part, const T* left, int leftStride, const T* state, int firstColumn,
                                          const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int k = 0; k < kTerms; k += 16) {
      Fragment a, b;
      leftOf(a, left, leftStride, me.tile * kTileRows, k, me.lane);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; n += 2) {
        rightOf(b, state, Share::kValueStride, firstColumn + n * 8, k, me.lane);
        multiplyPair<T>(part[n], part[n + 1], a, b);
      }
    }
  }

  /// A tile of 16 x 16 of left right^T.
  template <int kTerms>
  SEQPAR_WARP static void multiplyTokens(float (&tile)[2][4], const T* left, int m, const T* right, int n, int stride,
                                         const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int k = 0; k < kTerms; k += 16) {
      Fragment a, b;
      leftOf(a, left, stride, m, k, me.lane);
      rightOf(b, right, stride, n, k, me.lane);
      multiplyPair<T>(tile[0], tile[1], a, b);
    }
  }

  /// Row and column of tile `index` of the lower triangle.
  SEQPAR_WARP static void lowerTile(int index, int& row, int& column) {
    row = index >= 6 ? 3 : index >= 3 ? 2 : index >= 1 ? 1 : 0;
    column = index - row * (row + 1) / 2;
  }

  /// dA = scale dOut v^T below the diagonal, times the decays between its tokens if these are one a token; then A too.
  SEQPAR_WARP static void makeTokenMatrices(float scale, Memory& memory, const Lane<KD>& me) {
    for (int index = me.warpIndex; index < kTokenTiles; index += kWarps) {
      int row, column;
      lowerTile(index, row, column);
      float dA[2][4] = {}, a[2][4] = {};
      multiplyTokens<VD>(dA, memory.dOut, row * 16, memory.v, column * 16, Share::kValueStride, me);
      if constexpr (!kChannel) multiplyTokens<KD>(a, memory.q, row * 16, memory.k, column * 16, Share::kKeyStride, me);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int t = row * 16 + me.g + r * 8, s = column * 16 + n * 8 + me.c * 2;
          float gradient[2], value[2];
          SEQPAR_UNROLL
          for (int e = 0; e < 2; ++e) {
            gradient[e] = scale * dA[n][r * 2 + e];
            if (s + e == t) memory.ownTerms[t] = gradient[e];
            value[e] = scale * a[n][r * 2 + e];
            if constexpr (!kChannel) {
              const float decay = s + e <= t ? decayOf(memory.sums[t] - memory.sums[s + e]) : 0.f;
              value[e] *= decay;
              gradient[e] *= decay;
            }
            if (s + e >= t) gradient[e] = 0;
            if (s + e > t) value[e] = 0;
          }
          *reinterpret_cast<uint32_t*>(memory.dA + t * kTokenStride + s) = warp::pack<T>(gradient[0], gradient[1]);
          if constexpr (!kChannel) {
            *reinterpret_cast<uint32_t*>(memory.a + t * kTokenStride + s) = warp::pack<T>(value[0], value[1]);
          }
        }
      }
    }
  }

  /// Decays between tiles, from their logarithms.
  SEQPAR_WARP static void makeDecays(Memory& memory, int thread) {
    for (int i = thread; i < KD; i += kThreads) {
      float total[kTiles];
      SEQPAR_UNROLL
      for (int t = 0; t < kTiles; ++t) total[t] = memory.totals[t * KD + i];
      float before = 0, after = 0;
      SEQPAR_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        memory.toBegin[t * KD + i] = decayOf(before);
        memory.toEnd[(kTiles - 1 - t) * KD + i] = decayOf(after);
        before += total[t];
        after += total[kTiles - 1 - t];
      }
      memory.decay1[i] = decayOf(total[1]);
      memory.decay2[i] = decayOf(total[2]);
    }
  }

  /// What the warp's tokens lose on the way to other tiles: `far` for those 32 tokens away, in the other half.
  struct Factors {
    float begin, end;  ///< from the chunk's beginning to the token, from the token to the chunk's end
    float near, far;   ///< to or from the end of the earlier tile, of the earlier half
  };
  SEQPAR_WARP static Factors factorsOf(const Memory& memory, float sum, int column, const Lane<KD>& me) {
    const float fromTile = decayOf(sum), toTile = decayOf(memory.totals[me.tile * KD + column] - sum);
    Factors factors;
    factors.begin = fromTile * memory.toBegin[me.tile * KD + column];
    factors.end = toTile * memory.toEnd[me.tile * KD + column];
    factors.near = me.tile % 2 == 1 ? fromTile : toTile;
    factors.far = me.tile >= 2 ? fromTile * (me.tile == 3 ? memory.decay2[column] : 1.f)
                               : toTile * (me.tile == 0 ? memory.decay1[column] : 1.f);
    return factors;
  }

  /// Scales the parts of dq and dk that come from states, and makes the scaled operands.
  SEQPAR_WARP static void scaleByChannels(const Task& task, Memory& memory, const Gates& gates, const Raw<T, KD>& q,
                                          const Raw<T, KD>& k, Part& dq, Part& dk, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        Factors factors[2];
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          factors[e] = factorsOf(memory, gates.sum[n][r * 2 + e], Gates::column(me, n) + e, me);
          dq[n][r * 2 + e] = task.scale * times(factors[e].begin, dq[n][r * 2 + e]);
          dk[n][r * 2 + e] = times(factors[e].end, dk[n][r * 2 + e]);
        }
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r), near = me.tile % 2 == 1 ? qs : ks,
                       far = me.tile >= 2 ? qs : ks;
        *pairIn<KD>(memory.q, n, r, me) = warp::pack<T>(warp::lowOf<T>(qs) * factors[0].begin * task.scale,
                                                        warp::highOf<T>(qs) * factors[1].begin * task.scale);
        *pairIn<KD>(memory.k, n, r, me) =
            warp::pack<T>(warp::lowOf<T>(ks) * factors[0].end, warp::highOf<T>(ks) * factors[1].end);
        *pairIn<KD>(memory.nearKeys, n, r, me) =
            warp::pack<T>(warp::lowOf<T>(near) * factors[0].near, warp::highOf<T>(near) * factors[1].near);
        *pairIn<KD>(memory.farKeys, n, r, me) =
            warp::pack<T>(warp::lowOf<T>(far) * factors[0].far, warp::highOf<T>(far) * factors[1].far);
      }
    }
  }

  /// The tokens of one tile among each other. Pairs of tokens t > s are sorted by the highest bit h in which t and s
  /// differ: t is in the upper half of their block of 2h tokens, s in the lower one. Referred to the end of the lower
  /// half, q_t and k_s decay by exponents that are at most 0, whatever the decays are. A token is in one half only, so
  /// one matrix x holds q of the upper halves and k of the lower ones, already laid out as both operands of A = x x^T;
  /// and the symmetric dA times x has dq in its upper rows and dk in its lower ones.
  template <int kHalf>
  SEQPAR_WARP static void multiplyNeighbors(const Gates& gates, const Raw<T, KD>& q, const Raw<T, KD>& k,
                                            const Fragment& dA, Part& dq, Part& dk, float (&a)[2][4],
                                            const Lane<KD>& me) {
    const bool upper0 = kHalf < 8 && (me.g & kHalf) != 0, upper1 = kHalf == 8 || (me.g & kHalf) != 0;
    const int anchor = (kHalf == 8 ? 7 : (me.g & ~(2 * kHalf - 1)) + kHalf - 1) * 4 + me.c;
    Fragment between;  // dA between the halves of blocks of 2 kHalf tokens
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int t = me.g + i % 2 * 8, s = me.c * 2 + i / 2 * 8;
      const uint32_t low = ((t ^ s) / kHalf == 1) ? 0xffffu : 0u,
                     high = ((t ^ (s + 1)) / kHalf == 1) ? 0xffff0000u : 0u;
      between[i] = dA[i] & (low | high);
    }
    float product[2][4] = {};
    SEQPAR_UNROLL
    for (int j = 0; j < kTiles8 / 2; ++j) {
      float factor[2][4];
      Fragment x;
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float sum0 = gates.sum[j * 2 + n][e], sum1 = gates.sum[j * 2 + n][e + 2];
          const float anchor0 = warp::shuffle(sum0, anchor);
          const float anchor1 = kHalf == 8 ? anchor0 : warp::shuffle(sum1, anchor);
          factor[n][e] = decayOf(upper0 ? sum0 - anchor0 : anchor0 - sum0);
          factor[n][e + 2] = decayOf(upper1 ? sum1 - anchor1 : anchor1 - sum1);
        }
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const uint32_t pair = (r == 0 ? upper0 : upper1) ? q.pair(j * 2 + n, r) : k.pair(j * 2 + n, r);
          x[n * 2 + r] =
              warp::pack<T>(warp::lowOf<T>(pair) * factor[n][r * 2], warp::highOf<T>(pair) * factor[n][r * 2 + 1]);
        }
      }
      warp::multiplyAdd<T>(product[0], x, x[0], x[2]);
      warp::multiplyAdd<T>(product[1], x, x[1], x[3]);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        float gradient[4] = {0, 0, 0, 0};
        warp::multiplyAdd<T>(gradient, between, warp::transpose(x[n * 2]), warp::transpose(x[n * 2 + 1]));
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) {
          const bool upper = e < 2 ? upper0 : upper1;
          const float value = factor[n][e] * gradient[e];
          dq[j * 2 + n][e] += upper ? value : 0.f;
          dk[j * 2 + n][e] += upper ? 0.f : value;
        }
      }
    }
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int t = me.g + e / 2 * 8, s = n * 8 + me.c * 2 + e % 2;
        if (t > s && (t ^ s) / kHalf == 1) a[n][e] += product[n][e];
      }
    }
  }

  SEQPAR_WARP static void multiplyWithinTiles(Memory& memory, const Gates& gates, const Raw<T, KD>& q,
                                              const Raw<T, KD>& k, Part& dq, Part& dk, const Lane<KD>& me) {
    Fragment dA, transposed;
    leftOf(dA, memory.dA, kTokenStride, me.tile * 16, me.tile * 16, me.lane);
    leftOfTransposed(transposed, memory.dA, kTokenStride, me.tile * 16, me.tile * 16, me.lane);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) dA[i] |= transposed[i];  // one of the two is 0
    float a[2][4] = {}, own[2][4] = {};
    SEQPAR_UNROLL
    for (int j = 0; j < kTiles8 / 2; ++j) {
      warp::multiplyAdd<T>(own[0], q.x[j], k.x[j][0], k.x[j][2]);
      warp::multiplyAdd<T>(own[1], q.x[j], k.x[j][1], k.x[j][3]);
    }
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (me.g + e / 2 * 8 == n * 8 + me.c * 2 + e % 2) a[n][e] = own[n][e];
      }
    }
    multiplyNeighbors<8>(gates, q, k, dA, dq, dk, a, me);
    multiplyNeighbors<4>(gates, q, k, dA, dq, dk, a, me);
    multiplyNeighbors<2>(gates, q, k, dA, dq, dk, a, me);
    multiplyNeighbors<1>(gates, q, k, dA, dq, dk, a, me);
    float* to = memory.diagonals[me.tile * Columns<KD>::kParts + me.part];
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) to[(me.g + e / 2 * 8) * 16 + n * 8 + me.c * 2 + e % 2] = a[n][e];
    }
  }

  /// A between tiles, by the first six warps, and within tiles, from both halves of the channels.
  SEQPAR_WARP static void finishA(const Task& task, Memory& memory, const Lane<KD>& me) {
    if (me.warpIndex < kTokenTiles - kTiles) {
      const int row = me.warpIndex >= 3 ? 3 : me.warpIndex >= 1 ? 2 : 1, column = me.warpIndex - row * (row - 1) / 2;
      const T* keys = row / 2 == column / 2 ? memory.nearKeys : memory.farKeys;
      float a[2][4] = {};
      multiplyTokens<KD>(a, keys, row * 16, keys, column * 16, Share::kKeyStride, me);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          *reinterpret_cast<uint32_t*>(memory.a + (row * 16 + me.g + r * 8) * kTokenStride + column * 16 + n * 8 +
                                       me.c * 2) =
              warp::pack<T>(task.scale * a[n][r * 2], task.scale * a[n][r * 2 + 1]);
        }
      }
    }
    for (int pair = me.thread; pair < kTiles * 128; pair += kThreads) {
      const int tile = pair / 128, row = pair % 128 / 8, column = pair % 8 * 2;
      float low = 0, high = 0;
      SEQPAR_UNROLL
      for (int p = 0; p < Columns<KD>::kParts; ++p) {
        const float* from = memory.diagonals[tile * Columns<KD>::kParts + p] + row * 16 + column;
        low += from[0];
        high += from[1];
      }
      *reinterpret_cast<uint32_t*>(memory.a + (tile * 16 + row) * kTokenStride + tile * 16 + column) =
          warp::pack<T>(task.scale * low, task.scale * high);
    }
  }

  /// dq and dk from other tiles. Tile i stands to its neighbor i ^ 1 and to the tiles of the other half as upper or
  /// lower halves of blocks stand within tiles.
  SEQPAR_WARP static void multiplyBetweenTiles(const Memory& memory, const Gates& gates, Part& dq, Part& dk,
                                               const Lane<KD>& me) {
    const bool upperNear = me.tile % 2 == 1, upperFar = me.tile >= 2;
    Fragment near, far[2];
    const int neighbor = me.tile ^ 1, other = upperFar ? 0 : 2;
    dAOf(near, memory, neighbor, upperNear, me);
    dAOf(far[0], memory, other, upperFar, me);
    dAOf(far[1], memory, other + 1, upperFar, me);
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      const int column = me.firstColumn + n * 8;
      float nearPart[2][4] = {}, farPart[2][4] = {};
      Fragment right;
      rightOfTransposed(right, memory.nearKeys, Share::kKeyStride, column, neighbor * 16, me.lane);
      multiplyPair<T>(nearPart[0], nearPart[1], near, right);
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        rightOfTransposed(right, memory.farKeys, Share::kKeyStride, column, (other + i) * 16, me.lane);
        multiplyPair<T>(farPart[0], farPart[1], far[i], right);
      }
      SEQPAR_UNROLL
      for (int m = 0; m < 2; ++m) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) {
          const Factors factors = factorsOf(memory, gates.sum[n + m][e], Gates::column(me, n + m) + e % 2, me);
          const float nearValue = factors.near * nearPart[m][e], farValue = factors.far * farPart[m][e];
          dq[n + m][e] += (upperNear ? nearValue : 0.f) + (upperFar ? farValue : 0.f);
          dk[n + m][e] += (upperNear ? 0.f : nearValue) + (upperFar ? 0.f : farValue);
        }
      }
    }
  }
  SEQPAR_WARP static void dAOf(Fragment& to, const Memory& memory, int other, bool upper, const Lane<KD>& me) {
    if (upper) {
      leftOf(to, memory.dA, kTokenStride, me.tile * 16, other * 16, me.lane);
    } else {
      leftOfTransposed(to, memory.dA, kTokenStride, me.tile * 16, other * 16, me.lane);
    }
  }

  /// q dq - k dk, added up from each token to the end of its tile.
  SEQPAR_WARP static void sumGates(Memory& memory, const Raw<T, KD>& q, const Raw<T, KD>& k, const Part& dq,
                                   const Part& dk, Part& sums, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float term[2];
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
          const float qValue = e == 0 ? warp::lowOf<T>(qs) : warp::highOf<T>(qs);
          const float kValue = e == 0 ? warp::lowOf<T>(ks) : warp::highOf<T>(ks);
          term[r] = qValue * dq[n][r * 2 + e] - kValue * dk[n][r * 2 + e];
        }
        addToTileEnd(term[0], term[1], me);
        sums[n][e] = term[0];
        sums[n][e + 2] = term[1];
        if (me.g == 0) memory.gateTotals[me.tile * KD + Gates::column(me, n) + e] = term[0];
      }
    }
  }

  /// What a token has of itself.
  SEQPAR_WARP static void addOwnTerms(const Memory& memory, const Raw<T, KD>& q, const Raw<T, KD>& k, Part& dq,
                                      Part& dk, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float own = memory.ownTerms[me.tile * kTileRows + me.g + r * 8];
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; ++n) {
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
        dq[n][r * 2] += own * warp::lowOf<T>(ks);
        dq[n][r * 2 + 1] += own * warp::highOf<T>(ks);
        dk[n][r * 2] += own * warp::lowOf<T>(qs);
        dk[n][r * 2 + 1] += own * warp::highOf<T>(qs);
      }
    }
  }

  /// A warp's part of 64 x D, `offset` beyond the first number of the token's head.
  SEQPAR_WARP static void write(const Target& target, const Item<T>& item, int64_t token, int64_t offset, int columns,
                                const Part& part, const Lane<KD>& me) {
    if (target.data == nullptr) return;
    const int rows = item.rowsOf(token);
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = me.tile * kTileRows + me.g + r * 8;
      if (row >= rows) continue;
      const int64_t first = item.sequence * target.batch + (token + row) * target.token + item.head * target.head +
                            offset + me.firstColumn + me.c * 2;
      const int left = columns - me.firstColumn - me.c * 2;
      if (target.type == seqparFloat32) {
        float* to = static_cast<float*>(target.data) + first;
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; ++n) {
          if (n * 8 < left) warp::storeStreaming(to + n * 8, part[n][r * 2], part[n][r * 2 + 1]);
        }
      } else {
        uint16_t* to = static_cast<uint16_t*>(target.data) + first;
        const bool bf16 = std::is_same_v<T, Bf16> || target.type == seqparBfloat16;  // gates: whatever q is
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; ++n) {
          const float low = part[n][r * 2], high = part[n][r * 2 + 1];
          if (n * 8 < left) {
            warp::storeStreaming(to + n * 8, bf16 ? warp::pack<Bf16>(low, high) : warp::pack<Fp16>(low, high));
          }
        }
      }
    }
  }

  SEQPAR_WARP static int64_t keyOffset(const Target& target, const Item<T>& item) {
    return item.valueBlock * target.block + item.keyBlock * kBlock;
  }

  /// The gates' gradients of each channel: the sums to the tile's end, what later tiles add and the carry. `gates`: to
  /// find decays of 0; NULL: there are none.
  SEQPAR_WARP static void writeChannelGates(const Task& task, const Item<T>& item, int64_t token, const Memory& memory,
                                            const Gates* gates, const float* carry, Part& sums, const Lane<KD>& me) {
    if (task.dGates.data == nullptr) return;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = Gates::column(me, n) + e;
        float later = carry[column] + (Share::kSplits > 1 ? carry[KD + column] : 0.f);
        SEQPAR_UNROLL
        for (int t = 1; t < kTiles; ++t) later += t > me.tile ? memory.gateTotals[t * KD + column] : 0.f;
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const bool none = gates != nullptr && gates->forgets(n, r * 2 + e, me);
          sums[n][r * 2 + e] = none ? 0.f : sums[n][r * 2 + e] + later;
        }
      }
    }
    const Target& to = task.dGates;
    write(to, item, token, keyOffset(to, item), item.keys, sums, me);
  }

  /// Decays one a token: scales the parts of dq and dk that come from states, and q for the state's update.
  SEQPAR_WARP static void scaleByTokens(const Task& task, Memory& memory, const Raw<T, KD>& q, Part& dq, Part& dk,
                                        const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float sum = memory.sums[me.tile * kTileRows + me.g + r * 8];
      const float begin = decayOf(sum), end = decayOf(memory.sums[kChunk - 1] - sum);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          dq[n][r * 2 + e] = task.scale * times(begin, dq[n][r * 2 + e]);
          dk[n][r * 2 + e] = times(end, dk[n][r * 2 + e]);
        }
        const uint32_t pair = q.pair(n, r);
        *pairIn<KD>(memory.nearKeys, n, r, me) =
            warp::pack<T>(warp::lowOf<T>(pair) * begin * task.scale, warp::highOf<T>(pair) * begin * task.scale);
      }
    }
  }

  /// dq += dA k, dk += dA^T q, of the tiles in shared memory.
  SEQPAR_WARP static void multiplyByTokens(const Memory& memory, Part& dq, Part& dk, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      Fragment left, right;
      if (tile <= me.tile) {
        leftOf(left, memory.dA, kTokenStride, me.tile * 16, tile * 16, me.lane);
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; n += 2) {
          rightOfTransposed(right, memory.k, Share::kKeyStride, me.firstColumn + n * 8, tile * 16, me.lane);
          multiplyPair<T>(dq[n], dq[n + 1], left, right);
        }
      }
      if (tile >= me.tile) {
        leftOfTransposed(left, memory.dA, kTokenStride, me.tile * 16, tile * 16, me.lane);
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; n += 2) {
          rightOfTransposed(right, memory.q, Share::kKeyStride, me.firstColumn + n * 8, tile * 16, me.lane);
          multiplyPair<T>(dk[n], dk[n + 1], left, right);
        }
      }
    }
  }

  /// Decays one a token: the terms of their gradients.
  SEQPAR_WARP static void sumTokenGates(Memory& memory, const Raw<T, KD>& q, const Raw<T, KD>& k, const Part& dq,
                                        const Part& dk, const Lane<KD>& me) {
    float sum[2] = {0, 0};
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
        sum[r] += warp::lowOf<T>(qs) * dq[n][r * 2] - warp::lowOf<T>(ks) * dk[n][r * 2];
        sum[r] += warp::highOf<T>(qs) * dq[n][r * 2 + 1] - warp::highOf<T>(ks) * dk[n][r * 2 + 1];
      }
    }
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sum[r] += warp::shuffleXor(sum[r], 1);
      sum[r] += warp::shuffleXor(sum[r], 2);
      if (me.c == 0) memory.gateTerms[me.part][me.tile * kTileRows + me.g + r * 8] = sum[r];
    }
  }

  SEQPAR_WARP static void writeTokenGates(const Task& task, const Item<T>& item, int64_t token, const Memory& memory,
                                          const float* carry, const uint8_t* forgets, const Lane<KD>& me) {
    if (me.warpIndex != kWarps - 1 || task.dGates.data == nullptr) return;
    float last = 0;
    for (int i = me.lane; i < KD * Share::kSplits; i += 32) last += carry[i];
    SEQPAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) last += warp::shuffleXor(last, mask);
    float own[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      own[i] = 0;
      SEQPAR_UNROLL
      for (int p = 0; p < Columns<KD>::kParts; ++p) own[i] += memory.gateTerms[p][me.lane * 2 + i];
    }
    float sum = own[0] + own[1];
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = warp::shuffle(sum, me.lane + distance);
      if (me.lane + distance < 32) sum += other;
    }
    const int rows = item.rowsOf(token);
    const Target& to = task.dGates;
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.lane * 2 + i;
      if (row >= rows) continue;
      const float value = forgets[row] != 0 ? 0.f : last + (i == 0 ? sum : sum - own[0]);
      static_cast<float*>(to.data)[item.sequence * to.batch + (token + row) * to.token + item.head * to.head +
                                   (item.keyBlock * task.valueBlocks + item.valueBlock) * to.block] = value;
    }
  }

  /// dv = E^T (k, decayed to the chunk's end) + A^T dOut.
  SEQPAR_WARP static void writeValues(const Task& task, const Item<T>& item, int64_t token, const Memory& memory,
                                      const Lane<KD>& me) {
    const int firstColumn = me.firstColumn;
    Part dv;
    clear(dv);
    Fragment left, right;
    SEQPAR_UNROLL
    for (int k = 0; k < KD; k += 16) {
      leftOf(left, memory.k, Share::kKeyStride, me.tile * kTileRows, k, me.lane);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; n += 2) {
        rightOfTransposed(right, memory.after, Share::kValueStride, firstColumn + n * 8, k, me.lane);
        multiplyPair<T>(dv[n], dv[n + 1], left, right);
      }
    }
    if constexpr (!kChannel) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float end = decayOf(memory.sums[kChunk - 1] - memory.sums[me.tile * kTileRows + me.g + r * 8]);
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; ++n) {
          dv[n][r * 2] = times(end, dv[n][r * 2]);
          dv[n][r * 2 + 1] = times(end, dv[n][r * 2 + 1]);
        }
      }
    }
    for (int tile = me.tile; tile < kTiles; ++tile) {
      leftOfTransposed(left, memory.a, kTokenStride, me.tile * kTileRows, tile * kTileRows, me.lane);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; n += 2) {
        rightOfTransposed(right, memory.dOut, Share::kValueStride, firstColumn + n * 8, tile * kTileRows, me.lane);
        multiplyPair<T>(dv[n], dv[n + 1], left, right);
      }
    }
    write(task.dvOut, item, token, item.keyBlock * task.dvOut.block + item.valueBlock * kBlock, item.values, dv, me);
  }

  /// The most that a chunk may decay, in powers of 2, for its keys to be divided by their decays in T.
  static constexpr float kMostDecay = std::is_same_v<T, Bf16> ? 40 : 8;

  /// Where a thread keeps a pair of decays, in place of the gates' tile.
  SEQPAR_WARP static float* decayIn(Memory& memory, int n, int r, const Lane<KD>& me) {
    return reinterpret_cast<float*>(memory.nearKeys) + (me.tile * kTileRows + me.g + r * 8) * (KD + 8) +
           Gates::column(me, n);
  }

  /// A chunk whose decays are not too strong is one without decays, of q times the decay p from the chunk's beginning
  /// and k divided by it; the state's gradient decays before the chunk's terms are added.
  SEQPAR_WARP static void mildChunk(const Task& task, const Item<T>& item, int64_t token, const float* carry,
                                    float* nextCarry, Memory& memory, const Gates& gates, State<T, KD, VD>& state,
                                    const Lane<KD>& me) {
    const int row = State<T, KD, VD>::row(me);
    state.decay(memory.chunkDecay[row], memory.chunkDecay[row + 8]);
    state.store(memory.after, VD + 8, me);
    Raw<T, KD> q, k;
    q.load(memory.q, me);
    k.load(memory.k, me);
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      float before[2] = {0, 0};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        SEQPAR_UNROLL
        for (int t = 0; t < kTiles - 1; ++t) {
          before[e] += t < me.tile ? memory.totals[t * KD + Gates::column(me, n) + e] : 0.f;
        }
      }
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float p[2], inverse[2];
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          p[e] = decayOf(gates.sum[n][r * 2 + e] + before[e]);
          inverse[e] = warp::reciprocal(p[e]);
        }
        warp::storePair(decayIn(memory, n, r, me), p[0], p[1]);
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
        *pairIn<KD>(memory.q, n, r, me) =
            warp::pack<T>(warp::lowOf<T>(qs) * task.scale * p[0], warp::highOf<T>(qs) * task.scale * p[1]);
        *pairIn<KD>(memory.k, n, r, me) =
            warp::pack<T>(warp::lowOf<T>(ks) * inverse[0], warp::highOf<T>(ks) * inverse[1]);
      }
    }
    makeTokenMatrices(1, memory, me);
    warp::syncBlock();

    makeMildA(memory, me);
    Part dq, dk;
    clear(dq);
    clear(dk);
    multiplyByState<VD>(dq, memory.dOut, Share::kValueStride, memory.before, me.firstColumn, me);
    multiplyByState<VD>(dk, memory.v, Share::kValueStride, memory.after, me.firstColumn, me);
    multiplyByTokens(memory, dq, dk, me);
    finishMild(task, memory, dq, dk, me);
    write(task.dq, item, token, keyOffset(task.dq, item), item.keys, dq, me);
    write(task.dkOut, item, token, keyOffset(task.dkOut, item), item.keys, dk, me);
    warp::syncBlock();
    Part gateSums;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        warp::loadPair(decayIn(memory, n, r, me), gateSums[n][r * 2], gateSums[n][r * 2 + 1]);
      }
    }
    writeChannelGates(task, item, token, memory, nullptr, carry, gateSums, me);
    writeValues(task, item, token, memory, me);
    state.add(memory.q, memory.dOut, me);
    state.rowSums(memory.before, VD + 8, nextCarry, me);
    warp::syncBlock();
  }

  /// The gates' sums, which take the place of the decays, what tokens have of themselves, and the decays of dq and dk.
  SEQPAR_WARP static void finishMild(const Task& task, Memory& memory, Part& dq, Part& dk, const Lane<KD>& me) {
    float own[2];
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) own[r] = memory.ownTerms[me.tile * kTileRows + me.g + r * 8];
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      float q[2][2], k[2][2], term[2][2];
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t qs = *pairIn<KD>(memory.q, n, r, me), ks = *pairIn<KD>(memory.k, n, r, me);
        q[r][0] = warp::lowOf<T>(qs);
        q[r][1] = warp::highOf<T>(qs);
        k[r][0] = warp::lowOf<T>(ks);
        k[r][1] = warp::highOf<T>(ks);
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          float &q1 = dq[n][r * 2 + e], &k1 = dk[n][r * 2 + e];
          term[r][e] = q[r][e] * q1 - k[r][e] * k1;
          q1 += own[r] * k[r][e];
          k1 += own[r] * q[r][e];
        }
      }
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        addToTileEnd(term[0][e], term[1][e], me);
        if (me.g == 0) memory.gateTotals[me.tile * KD + Gates::column(me, n) + e] = term[0][e];
      }
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float p[2];
        float* at = decayIn(memory, n, r, me);
        warp::loadPair(at, p[0], p[1]);
        warp::storePair(at, term[r][0], term[r][1]);
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          dq[n][r * 2 + e] *= task.scale * p[e];
          dk[n][r * 2 + e] *= warp::reciprocal(p[e]);
        }
      }
    }
  }

  /// Sums from rows g and g + 8 to the last row of the tile.
  SEQPAR_WARP static void addToTileEnd(float& first, float& second, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int distance = 1; distance < 8; distance *= 2) {
      const float a = warp::shuffle(first, me.lane + distance * 4), b = warp::shuffle(second, me.lane + distance * 4);
      if (me.g + distance < 8) {
        first += a;
        second += b;
      }
    }
    first += warp::shuffle(second, me.c);
  }

  /// A = q k^T of the scaled tiles, by the last warps: the first ones had dA.
  SEQPAR_WARP static void makeMildA(Memory& memory, const Lane<KD>& me) {
    for (int index = kWarps - 1 - me.warpIndex; index < kTokenTiles; index += kWarps) {
      int row, column;
      lowerTile(index, row, column);
      float a[2][4] = {};
      multiplyTokens<KD>(a, memory.q, row * 16, memory.k, column * 16, Share::kKeyStride, me);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int t = row * 16 + me.g + r * 8, s = column * 16 + n * 8 + me.c * 2;
          *reinterpret_cast<uint32_t*>(memory.a + t * kTokenStride + s) =
              warp::pack<T>(s <= t ? a[n][r * 2] : 0.f, s + 1 <= t ? a[n][r * 2 + 1] : 0.f);
        }
      }
    }
  }

  /// Any decays of channels. Not inlined, so that its many registers are its own.
  SEQPAR_WARP_CALL static State<T, KD, VD> strongChunk(const Task& task, const Item<T>& item, int64_t token,
                                                       const float* carry, float* nextCarry, Memory& memory,
                                                       const Gates gates, State<T, KD, VD> state) {
    const Lane<KD> me;
    state.store(memory.after, VD + 8, me);
    Raw<T, KD> q, k;
    q.load(memory.q, me);
    k.load(memory.k, me);
    makeTokenMatrices(task.scale, memory, me);
    makeDecays(memory, me.thread);
    warp::syncBlock();
    Part dq, dk, gateSums;
    clear(dq);
    clear(dk);
    multiplyByState<VD>(dq, memory.dOut, Share::kValueStride, memory.before, me.firstColumn, me);
    multiplyByState<VD>(dk, memory.v, Share::kValueStride, memory.after, me.firstColumn, me);
    scaleByChannels(task, memory, gates, q, k, dq, dk, me);
    multiplyWithinTiles(memory, gates, q, k, dq, dk, me);
    warp::syncBlock();
    finishA(task, memory, me);
    multiplyBetweenTiles(memory, gates, dq, dk, me);
    sumGates(memory, q, k, dq, dk, gateSums, me);
    addOwnTerms(memory, q, k, dq, dk, me);
    write(task.dq, item, token, keyOffset(task.dq, item), item.keys, dq, me);
    write(task.dkOut, item, token, keyOffset(task.dkOut, item), item.keys, dk, me);
    warp::syncBlock();
    writeChannelGates(task, item, token, memory, &gates, carry, gateSums, me);
    writeValues(task, item, token, memory, me);
    const int row = State<T, KD, VD>::row(me);
    state.decay(memory.chunkDecay[row], memory.chunkDecay[row + 8]);
    state.add(memory.q, memory.dOut, me);
    state.rowSums(memory.before, VD + 8, nextCarry, me);
    warp::syncBlock();
    return state;
  }

  /// Decays one a token, any of them.
  SEQPAR_WARP static void tokenChunk(const Task& task, const Item<T>& item, int64_t token, const float* carry,
                                     float* nextCarry, Memory& memory, State<T, KD, VD>& state, const Lane<KD>& me) {
    Raw<T, KD> q, k;
    q.load(memory.q, me);
    makeTokenMatrices(task.scale, memory, me);
    Part dq, dk;
    clear(dq);
    clear(dk);
    multiplyByState<VD>(dq, memory.dOut, Share::kValueStride, memory.before, me.firstColumn, me);
    multiplyByState<VD>(dk, memory.v, Share::kValueStride, memory.after, me.firstColumn, me);
    scaleByTokens(task, memory, q, dq, dk, me);
    warp::syncBlock();
    multiplyByTokens(memory, dq, dk, me);
    q.load(memory.q, me);  // anew, for registers are scarce
    k.load(memory.k, me);
    sumTokenGates(memory, q, k, dq, dk, me);
    addOwnTerms(memory, q, k, dq, dk, me);
    write(task.dq, item, token, keyOffset(task.dq, item), item.keys, dq, me);
    write(task.dkOut, item, token, keyOffset(task.dkOut, item), item.keys, dk, me);
    writeValues(task, item, token, memory, me);
    const float decay = decayOf(memory.sums[kChunk - 1]);
    state.decay(decay, decay);
    state.add(memory.nearKeys, memory.dOut, me);
    state.rowSums(memory.before, VD + 8, nextCarry, me);
    warp::syncBlock();
    writeTokenGates(task, item, token, memory, carry, memory.forgets[(token - item.first) / kChunk % 2], me);
  }

  /// One chunk; leaves in `state` the gradient of the state before it.
  SEQPAR_WARP static void chunk(const Task& task, const Item<T>& item, int index, const T* states, Memory& memory,
                                State<T, KD, VD>& state, const Lane<KD>& me) {
    const int64_t token = item.first + int64_t{index} * kChunk;
    const float* carry = memory.carry[index % 2];
    float* nextCarry = memory.carry[(index + 1) % 2];
    fetch(task, item, index, states, memory, me.thread);
    prefetch(task, item, index - 1, states, me.thread);
    if constexpr (!kChannel) {
      state.store(memory.after, VD + 8, me);
      addUpTokens(task, item, token, memory.sums, memory.forgets[index % 2], me);
    }
    warp::awaitCopies<kChannel ? 1 : 0>();
    warp::syncBlock();
    if constexpr (kChannel) {
      Gates gates;
      gates.addUp(memory.nearKeys, task, beginsOf(task, token), memory.totals, me);
      warp::syncBlock();
      bool mild = true;
      for (int i = me.thread; i < KD; i += kThreads) {
        float total = 0;
        SEQPAR_UNROLL
        for (int t = 0; t < kTiles; ++t) total += memory.totals[t * KD + i];
        memory.chunkDecay[i] = decayOf(total);
        mild = mild && total >= -kMostDecay;
      }
      warp::awaitCopies<0>();
      if (warp::allOfBlock(mild)) {
        mildChunk(task, item, token, carry, nextCarry, memory, gates, state, me);
      } else {
        state = strongChunk(task, item, token, carry, nextCarry, memory, gates, state);
      }
    } else {
      tokenChunk(task, item, token, carry, nextCarry, memory, state, me);
    }
  }

  /// The kernel: each CTA makes the gradients of the items that fall to it.
  SEQPAR_WARP static void run(const Task& task) {
    auto& memory = *reinterpret_cast<Memory*>(warp::sharedMemory() + kItemBytes);
    auto& sweepMemory = *reinterpret_cast<SweepMemory<T, KD, VD, kChannel>*>(warp::sharedMemory() + kItemBytes);
    const Lane<KD> me;
    const int64_t chunks = (task.segmentTokens + kChunk - 1) / kChunk;
    T* states = reinterpret_cast<T*>(task.states) + warp::block() * chunks * KD * VD;
    const int64_t items = int64_t{task.batch} * task.headCount * task.keyBlocks * task.valueBlocks * task.segments;
    const int width = kChannel ? task.dk : 1;
    for (int64_t index = warp::block(); index < items; index += warp::blocks()) {
      if (task.strong != nullptr && task.strong[index] == 0) continue;  // done by the kernel of sm_90
      const Item<T>& item = itemInMemory<T>(task, index, me.thread);
      const int64_t rows = kChannel ? item.keyBlock * kBlock : 0;
      const int64_t whole =
          (int64_t{item.sequence} * task.heads + item.head) * task.dk * task.dv + item.stateOffset(task);
      const int64_t part = item.map * task.dk * task.dv + item.stateOffset(task);
      const auto from = [](const float* all, int64_t offset) { return all == nullptr ? nullptr : all + offset; };
      State<T, KD, VD> state, gradient;
      state.loadFull(item.segment > 0 ? task.before.states + part : nullptr,
                     task.before.logDecays + (item.map - item.segment) * width + rows, item.segment, width,
                     from(task.initial, whole), task.dv, item.keys, item.values, me);
      float logDecay;
      Sweep<T, KD, VD, kChannel, false>::run(task, item, sweepMemory, state, states, logDecay, me);
      warp::syncBlock();
      gradient.loadFull(task.after.states + part, task.after.logDecays + item.map * width + rows, 1, width,
                        from(task.finalGradient, whole), task.dv, item.keys, item.values, me);
      gradient.rowSums(state, memory.carry[(item.chunks + 1) % 2], me);
      for (int i = item.chunks - 1; i >= 0; --i) chunk(task, item, i, states, memory, gradient, me);
      if (item.segment == 0 && task.dInitial != nullptr) {
        gradient.storeFull(task.dInitial + whole, task.dv, item.keys, item.values, me);
      }
      warp::syncBlock();
    }
  }
};

}  // namespace seqpar::attn::backward
