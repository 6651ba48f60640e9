// Preparation of a stage by one warp for its group of channels, before q and k are multiplied by the state, for channel
// decays. With L the sum of log2-decays from the stage's start, q becomes q 2^L and k becomes k 2^-L. If the decays are
// too strong for that, the group is exact: two blocks of 16 tokens, L from the block's start, k becomes k 2^(Lend - L),
// and this file computes the scores within the blocks, by halving (decay.h).
#pragma once

#include "kernels/attn/linear/gate_tile.cuh"

namespace seqpar::attn {

/// Addresses of a warp's part of a stage.
struct GroupPlace {
  char *q, *k, *gates;  ///< tiles
  float* decays;        ///< [2][dk]: 2^Lend of the stage in the first, or of each block
  int group;
};

/// The scores within the two blocks, accumulator tiles C of 16 x 16.
struct BlockScores {
  float tile[2][2][4];
};

template <class T, class Shape>
struct PrepareGroup {
  using KeyTile = Tile<Shape::kDk>;
  using Gates = GateTile<Shape>;
  static constexpr int kTokens = Shape::kLaneTokens, kPairs = Shape::kPairs, kGroup = Shape::kGroup;
  static constexpr unsigned kAll = 0xffffffffU;

  /// Returns true if computed relative to the stage's start.
  static SEQPAR_DEVICE bool run(const GroupPlace& place, bool fullGates, int lane) {
    const int row = lane / kPairs * kTokens;
    float2 sums[kTokens];
    sumLane(sums, place, fullGates, lane);
    const float2 own = sums[kTokens - 1];
    const float2 before = sumOfOthers<Shape, false>(own, lane);
    const int last = 32 - kPairs + lane % kPairs;
    const float2 total =
        make_float2(__shfl_sync(kAll, before.x + own.x, last), __shfl_sync(kAll, before.y + own.y, last));
    const float least = fminf(total.x, total.y);
    bool mine = least >= Numbers<T>::kSafeLog2;
    if (Numbers<T>::kLargest < 1e30F)
      mine = mine && largestKey(place, row, lane) * ptx::ex2Approx(-least) < Numbers<T>::kLargest;
    if (!__all_sync(kAll, mine)) {
      exact(place, fullGates, lane);
      return false;
    }
    const int channel = place.group * kGroup + 2 * (lane % kPairs);
    if (lane < kPairs)
      *reinterpret_cast<float2*>(place.decays + channel) =
          make_float2(ptx::ex2Approx(total.x), ptx::ex2Approx(total.y));
    const int at = KeyTile::offset(row, channel);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float2 sum = make_float2(sums[t].x + before.x, sums[t].y + before.y);
      scale(place.q + at + KeyTile::offset(t, 0), ptx::ex2Approx(sum.x), ptx::ex2Approx(sum.y));
      scale(place.k + at + KeyTile::offset(t, 0), ptx::ex2Approx(-sum.x), ptx::ex2Approx(-sum.y));
    }
    return true;
  }

  /// Address of the BlockScores of a lane of an exact group; they replace its gates.
  static SEQPAR_DEVICE float4* scoresAt(char* gates, int group, int lane) {
    return reinterpret_cast<float4*>(gates + Gates::offset(lane, group));
  }

 private:
  /// Log2-decays of this lane's tokens and channels, summed.
  static SEQPAR_DEVICE void sumLane(float2 (&sums)[kTokens], const GroupPlace& place, bool fullGates, int lane) {
    Gates::read(sums, place.gates, place.group, lane, fullGates);
#pragma unroll
    for (int t = 1; t < kTokens; ++t) sums[t] = make_float2(sums[t].x + sums[t - 1].x, sums[t].y + sums[t - 1].y);
  }

  static SEQPAR_DEVICE void scale(char* at, float x, float y) {
    uint32_t* const two = reinterpret_cast<uint32_t*>(at);
    const float2 numbers = Numbers<T>::unpack(*two);
    *two = Numbers<T>::pack(numbers.x * x, numbers.y * y);
  }

  static SEQPAR_DEVICE float largestKey(const GroupPlace& place, int row, int lane) {
    float largest = 0;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float2 two = Numbers<T>::unpack(*reinterpret_cast<const uint32_t*>(
          place.k + KeyTile::offset(row + t, place.group * kGroup + 2 * (lane % kPairs))));
      largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
    }
    return largest;
  }

  /// Adds the chosen (query, key) scores of both blocks; `a` and `b` return the fragments of the tiles.
  template <class A, class B, class Chosen>
  static SEQPAR_DEVICE void addScores(BlockScores& scores, const A& a, const B& b, int lane, const Chosen& chosen) {
    const ptx::AccumulatorLayout layout{lane};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      float made[2][4] = {};
#pragma unroll
      for (int step = 0; step < kGroup / 16; ++step) {
        uint32_t left[4], right[4];
        ptx::ldmatrixX4(left, a(block) + 32 * step);
        ptx::ldmatrixX4(right, b(block) + 32 * step);
        Numbers<T>::multiply(made[0], left, right[0], right[1]);
        Numbers<T>::multiply(made[1], left, right[2], right[3]);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = layout.row(0, e), j = layout.column(8 * tile, e);
          if (chosen(i, j)) scores.tile[block][tile][e] += made[tile][e];
        }
      }
    }
  }

  /// Not inlined, so that its registers do not burden the other path.
  static SEQPAR_DEVICE_NOINLINE void exact(GroupPlace place, bool fullGates, int lane) {
    float2 sums[kTokens];
    sumLane(sums, place, fullGates, lane);
    constexpr bool kTwoLanes = kTokens < kBlockTokens;  // hold the tokens of a block
    const int row = lane / kPairs * kTokens;
    const bool second = kTwoLanes && lane / kPairs % 2 == 1;
    float2 total = sums[kTokens - 1];
    if (kTwoLanes) {
      const float2 other = make_float2(__shfl_xor_sync(kAll, total.x, kPairs), __shfl_xor_sync(kAll, total.y, kPairs));
#pragma unroll
      for (int t = 0; t < kTokens && second; ++t) sums[t] = make_float2(sums[t].x + other.x, sums[t].y + other.y);
      total = make_float2(total.x + other.x, total.y + other.y);
    }
    const float2 end = sums[kTokens - 1];
    const float2 below = make_float2(__shfl_up_sync(kAll, end.x, kPairs), __shfl_up_sync(kAll, end.y, kPairs));
    const int channel = place.group * kGroup + 2 * (lane % kPairs);
    if (row % kBlockTokens == 0) {
      float* const decays = place.decays + row / kBlockTokens * Shape::kDk;
      *reinterpret_cast<float2*>(decays + channel) = make_float2(ptx::ex2Approx(total.x), ptx::ex2Approx(total.y));
    }

    BlockScores scores = {};
    const uint32_t q = ptx::sharedAddress(place.q) + 2 * kGroup * place.group;
    const uint32_t k = ptx::sharedAddress(place.k) + 2 * kGroup * place.group;
    addScores(
        scores, [&](int block) { return KeyTile::fragment(q, block * kBlockTokens, lane); },
        [&](int block) { return KeyTile::fragmentAcross(k, block * kBlockTokens, lane); }, lane,
        [](int i, int j) { return i == j; });
    // The group's gates are in registers now: their memory holds the two tiles of a level.
    char* const queries = place.gates + Gates::offset(0, place.group);
    char* const keys = queries + Gates::kGroupBytes / 2;
    const uint32_t queriesAt = ptx::sharedAddress(queries), keysAt = ptx::sharedAddress(keys);
#pragma unroll
    for (int level = kBlockTokens / 2; level > 0; level /= 2) {
      __syncwarp();
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const bool here = level < kTokens;  // this lane has both halves
        const bool upper = here ? inUpperHalf(t, level) : second;
        const float2 reference = here ? sums[referenceToken(t, level) % kTokens] : (second ? below : end);
        const float x = ptx::ex2Approx(upper ? sums[t].x - reference.x : reference.x - sums[t].x);
        const float y = ptx::ex2Approx(upper ? sums[t].y - reference.y : reference.y - sums[t].y);
        const int from = KeyTile::offset(row + t, channel);
        const int to = Gates::offset(row + t, 0) + 4 * (lane % kPairs);
        const float2 two = Numbers<T>::unpack(*reinterpret_cast<const uint32_t*>((upper ? place.q : place.k) + from));
        *reinterpret_cast<uint32_t*>((upper ? queries : keys) + to) = Numbers<T>::pack(two.x * x, two.y * y);
        *reinterpret_cast<uint32_t*>((upper ? keys : queries) + to) = 0;
      }
      __syncwarp();
      addScores(
          scores,
          [&](int block) {
            return queriesAt + Gates::offset(block * kBlockTokens + (lane & 15), 0) + 16 * (lane >> 4);
          },
          [&](int block) {
            return keysAt + Gates::offset(block * kBlockTokens + (lane & 7) + ((lane >> 4) << 3), 0) +
                   16 * ((lane >> 3) & 1);
          },
          lane, [&](int i, int j) { return madeAtLevel(i, j, level); });
    }
    __syncwarp();
    float4* const at = scoresAt(place.gates, place.group, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&tile)[4] = scores.tile[i / 2][i % 2];
      at[i] = make_float4(tile[0], tile[1], tile[2], tile[3]);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int at16 = KeyTile::offset(row + t, channel);
      scale(place.q + at16, ptx::ex2Approx(sums[t].x), ptx::ex2Approx(sums[t].y));
      scale(place.k + at16, ptx::ex2Approx(total.x - sums[t].x), ptx::ex2Approx(total.y - sums[t].y));
    }
  }
};

}  // namespace seqpar::attn
