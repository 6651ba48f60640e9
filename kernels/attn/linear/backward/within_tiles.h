// Products of tokens of the same tile, for any channel decays.
#pragma once

#include "kernels/attn/linear/backward/outputs.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD>
struct WithinTiles {
  using Memory = GradientsMemory<T, KD, VD>;
  using Gates = ChannelGates<KD>;
  using Part = ChunkPart<KD>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8;

  SEQPAR_DEVICE static void multiply(Memory& memory, const Gates& gates, const Raw<T, KD>& q, const Raw<T, KD>& k,
                                     Part& dq, Part& dk, const Lane<KD>& me) {
    Fragment dA, rest;
    symmetric(dA, memory.dA, me);
    symmetric(rest, memory.rest, me);
    float a[2][4] = {}, own[2][4] = {};
    SEQPAR_UNROLL
    for (int j = 0; j < kTiles8 / 2; ++j) {
      ptx::mmaM16N8K16<T>(own[0], q.x[j], k.x[j][0], k.x[j][2]);
      ptx::mmaM16N8K16<T>(own[1], q.x[j], k.x[j][1], k.x[j][3]);
    }
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (me.layout().row(0, e) == me.layout().column(n * 8, e)) a[n][e] = own[n][e];
      }
    }
    // Loops are not unrolled: otherwise the values exceed the registers, and the instructions exceed the cache.
    SEQPAR_ROLLED
    for (int half = 8; half > 0; half /= 2) multiplyHalves<0>(half, gates, q, k, dA, rest, dq, dk, a, me);
    SEQPAR_ROLLED
    for (int half = 8; half > 0; half /= 2) multiplyHalves<1>(half, gates, q, k, dA, rest, dq, dk, a, me);
    float* to = memory.diagonals[me.tile * Columns<KD>::kParts + me.part];
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) to[me.layout().row(0, e) * 16 + n * 8 + me.layout().column(0, e)] = a[n][e];
    }
  }

 private:
  /// Whether bit `half` is the highest bit where the tokens differ.
  SEQPAR_DEVICE static bool differ(int t, int s, int half) { return (t ^ s) >= half && (t ^ s) < 2 * half; }

  /// The warp's tile of a triangular matrix, mirrored to both sides of the diagonal.
  SEQPAR_DEVICE static void symmetric(Fragment& to, const T* matrix, const Lane<KD>& me) {
    Fragment transposed;
    leftOf(to, matrix, kTokenStride, me.tile * 16, me.tile * 16, me.lane);
    leftOfTransposed(transposed, matrix, kTokenStride, me.tile * 16, me.tile * 16, me.lane);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) to[i] |= transposed[i];
  }

  /// Pairs of tokens t > s are ordered by h, the highest bit where t and s differ: t is in the upper half of their
  /// block of 2h tokens, s in the lower half. Relative to the end of the lower half, the exponents of q_t and k_s are
  /// at most 0, for any decays. A token is in one half only, so one matrix x contains q of the upper halves and k of
  /// the lower ones, already in the layout of both operands of A = x x^T; and the product of the symmetric dA with x
  /// contains dq in its upper rows and dk in its lower ones. The rounding remainders of x and dA are included.
  template <int kPart>
  SEQPAR_DEVICE static void multiplyHalves(int half, const Gates& gates, const Raw<T, KD>& q, const Raw<T, KD>& k,
                                           const Fragment& dA, const Fragment& dARest, Part& dq, Part& dk,
                                           float (&a)[2][4], const Lane<KD>& me) {
    const bool whole = half == 8, inUpper = (me.g & half) != 0, upper0 = !whole && inUpper, upper1 = whole || inUpper;
    const int anchor = (whole ? 7 : (me.g & ~(2 * half - 1)) + half - 1) * 4 + me.c;
    Fragment between, betweenRest;  // dA between the halves of blocks of 2 half tokens
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int t = me.g + i % 2 * 8, s = me.c * 2 + i / 2 * 8;
      const uint32_t low = differ(t, s, half) ? 0xffffu : 0u, high = differ(t, s + 1, half) ? 0xffff0000u : 0u;
      between[i] = dA[i] & (low | high);
      betweenRest[i] = dARest[i] & (low | high);
    }
    float product[2][4] = {};
    SEQPAR_UNROLL
    for (int j = kPart * kTiles8 / 4; j < (kPart + 1) * kTiles8 / 4; ++j) {
      float factor[2][4];
      Fragment x, rest;
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float sum0 = gates.sum[j * 2 + n][e], sum1 = gates.sum[j * 2 + n][e + 2];
          const float anchor0 = ptx::shfl(sum0, anchor);
          const float other = ptx::shfl(sum1, anchor);
          const float anchor1 = whole ? anchor0 : other;
          factor[n][e] = decayOf(upper0 ? sum0 - anchor0 : anchor0 - sum0);
          factor[n][e + 2] = decayOf(upper1 ? sum1 - anchor1 : anchor1 - sum1);
        }
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const uint32_t pair = (r == 0 ? upper0 : upper1) ? q.pair(j * 2 + n, r) : k.pair(j * 2 + n, r);
          const float low = ptx::lowOf<T>(pair) * factor[n][r * 2], high = ptx::highOf<T>(pair) * factor[n][r * 2 + 1];
          x[n * 2 + r] = ptx::pack<T>(low, high);
          rest[n * 2 + r] = restOf<T>(low, high, x[n * 2 + r]);
        }
      }
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        ptx::mmaM16N8K16<T>(product[i], x, x[i], x[i + 2]);
        ptx::mmaM16N8K16<T>(product[i], rest, x[i], x[i + 2]);
        ptx::mmaM16N8K16<T>(product[i], x, rest[i], rest[i + 2]);
      }
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        float gradient[4] = {0, 0, 0, 0};
        const uint32_t right[2] = {ptx::movmatrixTrans(x[n * 2]), ptx::movmatrixTrans(x[n * 2 + 1])};
        ptx::mmaM16N8K16<T>(gradient, between, right[0], right[1]);
        ptx::mmaM16N8K16<T>(gradient, betweenRest, right[0], right[1]);
        ptx::mmaM16N8K16<T>(gradient, between, ptx::movmatrixTrans(rest[n * 2]), ptx::movmatrixTrans(rest[n * 2 + 1]));
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
        const int t = me.layout().row(0, e), s = me.layout().column(n * 8, e);
        if (t > s && differ(t, s, half)) a[n][e] += product[n][e];
      }
    }
  }
};

}  // namespace seqpar::attn::backward
