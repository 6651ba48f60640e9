// What a warp does for one block of 16 tokens and half of the channels before the block meets the state, for decays of
// each channel: turns q into q 2^L and k into k 2^-L or k 2^(Lend - L), in place, and makes the block's scores
// (decay.h).
#pragma once

#include "kernels/attn/linear/gate_tile.cuh"

namespace seqpar::attn {

/// Where a warp's part of a block is.
struct BlockPlace {
  char* q;  ///< tiles of a stage
  char* k;
  char* gates;
  float* decay;  ///< [dk], of the block: 2^Lend goes here
  int row;       ///< first row of the block
  int group;     ///< of channels
};

/// scores += X Y^T for two tiles of 16 rows and kGroup columns, whose fragments the functions give.
template <class T, class Shape, class A, class B>
__device__ __forceinline__ void multiplyGroup(float (&scores)[2][4], const A& addressOfA, const B& addressOfB) {
#pragma unroll
  for (int step = 0; step < Shape::kGroup / 16; ++step) {
    uint32_t a[4], b[4];
    loadMatrices(a, addressOfA(16 * step));
    loadMatrices(b, addressOfB(16 * step));
    Numbers<T>::multiply(scores[0], a, b[0], b[1]);
    Numbers<T>::multiply(scores[1], a, b[2], b[3]);
  }
}

/// Adds those `made` scores whose (query, key) the predicate chooses.
template <class Chosen>
__device__ __forceinline__ void addChosen(float (&scores)[2][4], const float (&made)[2][4], int lane,
                                          const Chosen& chosen) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = lane / 4 + 8 * (e / 2);
      const int j = 8 * tile + 2 * (lane % 4) + e % 2;
      if (chosen(i, j)) scores[tile][e] += made[tile][e];
    }
  }
}

template <class T, class Shape>
struct PrepareBlock {
  using KeyTile = Tile<Shape::kDk>;
  using Gates = GateTile<Shape>;
  static constexpr int kGroup = Shape::kGroup;

  /// Adds the group's part of the scores to `scores`; those of j > i mean nothing. True: k is k 2^-L. `resets`: bit t,
  /// a sequence starts at token t of the block.
  static __device__ __forceinline__ bool run(const BlockPlace& place, uint32_t resets, bool fullGates, int lane,
                                             float (&scores)[2][4]) {
    const bool active = 2 * lane < kGroup;
    float2 sums[kBlockTokens];
    if (active) Gates::read(sums, place.gates, place.row, place.group, lane, fullGates);
    if (resets != 0) {
#pragma unroll
      for (int t = 0; t < kBlockTokens; ++t) {
        if ((resets >> t & 1) != 0) sums[t] = make_float2(kLeastLog2, kLeastLog2);
      }
    }
#pragma unroll
    for (int t = 1; t < kBlockTokens; ++t) {
      sums[t].x += sums[t - 1].x;
      sums[t].y += sums[t - 1].y;
    }
    const float2 last = sums[kBlockTokens - 1];
    const int channel = place.group * kGroup + 2 * lane;
    if (active) *reinterpret_cast<float2*>(place.decay + channel) = make_float2(exp2Fast(last.x), exp2Fast(last.y));
    const float least = fminf(last.x, last.y);
    bool mine = !active || (least >= Numbers<T>::kSafeLog2);
    if (Numbers<T>::kLargest < 1e30F && active)
      mine = mine && largestKey(place, channel) * exp2Fast(-least) < Numbers<T>::kLargest;
    const bool safe = __all_sync(0xffffffffU, mine);
    if (safe) {
      if (active) {
#pragma unroll
        for (int t = 0; t < kBlockTokens; ++t) {
          const uint32_t at = KeyTile::elementOffset(place.row + t, channel);
          scale(place.q + at, exp2Fast(sums[t].x), exp2Fast(sums[t].y));
          scale(place.k + at, exp2Fast(-sums[t].x), exp2Fast(-sums[t].y));
        }
      }
      __syncwarp();
      addRaw(place, lane, scores);
      return true;
    }
    exactScores(place, sums, active, lane, scores);
    if (active) {
#pragma unroll
      for (int t = 0; t < kBlockTokens; ++t) {
        const uint32_t at = KeyTile::elementOffset(place.row + t, channel);
        scale(place.q + at, exp2Fast(sums[t].x), exp2Fast(sums[t].y));
        scale(place.k + at, exp2Fast(last.x - sums[t].x), exp2Fast(last.y - sums[t].y));
      }
    }
    return false;
  }

 private:
  static __device__ __forceinline__ void scale(char* at, float x, float y) {
    uint32_t* const two = reinterpret_cast<uint32_t*>(at);
    const float2 numbers = Numbers<T>::unpack(*two);
    *two = Numbers<T>::pack(numbers.x * x, numbers.y * y);
  }

  static __device__ __forceinline__ float largestKey(const BlockPlace& place, int channel) {
    float largest = 0;
#pragma unroll
    for (int t = 0; t < kBlockTokens; ++t) {
      const float2 two = Numbers<T>::unpack(
          *reinterpret_cast<const uint32_t*>(place.k + KeyTile::elementOffset(place.row + t, channel)));
      largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
    }
    return largest;
  }

  /// scores += q k^T of the tiles as they are.
  static __device__ __forceinline__ void addRaw(const BlockPlace& place, int lane, float (&scores)[2][4]) {
    const uint32_t q = sharedAddress(place.q), k = sharedAddress(place.k);
    const int first = place.group * kGroup;
    multiplyGroup<T, Shape>(
        scores, [&](int column) { return q + KeyTile::fragment(place.row, first + column, lane); },
        [&](int column) { return k + KeyTile::fragmentAcross(place.row, first + column, lane); });
  }

  /// By halving; the group's gates, which are in registers by now, make room for the two tiles of a level.
  static __device__ void exactScores(const BlockPlace& place, const float2 (&sums)[kBlockTokens], bool active, int lane,
                                     float (&scores)[2][4]) {
    float made[2][4] = {};
    addRaw(place, lane, made);
    addChosen(scores, made, lane, [](int i, int j) { return i == j; });
    char* const queries = place.gates + place.row * Gates::kRowBytes + place.group * kGroup * 4;
    char* const keys = queries + kGroup * 2;
    const int channel = place.group * kGroup + 2 * lane;
#pragma unroll
    for (int level = 8; level > 0; level /= 2) {
      __syncwarp();
      if (active) {
#pragma unroll
        for (int t = 0; t < kBlockTokens; ++t) {
          const bool upper = inUpperHalf(t, level);
          const float2 reference = sums[referenceToken(t, level)];
          const float x = exp2Fast(upper ? sums[t].x - reference.x : reference.x - sums[t].x);
          const float y = exp2Fast(upper ? sums[t].y - reference.y : reference.y - sums[t].y);
          const uint32_t at = KeyTile::elementOffset(place.row + t, channel);
          const float2 numbers =
              Numbers<T>::unpack(*reinterpret_cast<const uint32_t*>((upper ? place.q : place.k) + at));
          uint32_t* const to = reinterpret_cast<uint32_t*>((upper ? queries : keys) + t * Gates::kRowBytes) + lane;
          uint32_t* const other = reinterpret_cast<uint32_t*>((upper ? keys : queries) + t * Gates::kRowBytes) + lane;
          *to = Numbers<T>::pack(numbers.x * x, numbers.y * y);
          *other = 0;
        }
      }
      __syncwarp();
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) made[tile][e] = 0;
      }
      const uint32_t a = sharedAddress(queries), b = sharedAddress(keys);
      multiplyGroup<T, Shape>(
          made, [&](int column) { return a + (lane & 15) * Gates::kRowBytes + (column + 8 * (lane >> 4)) * 2; },
          [&](int column) {
            return b + ((lane & 7) + ((lane >> 4) << 3)) * Gates::kRowBytes + (column + 8 * ((lane >> 3) & 1)) * 2;
          });
      addChosen(scores, made, lane, [&](int i, int j) { return madeAtLevel(i, j, level); });
    }
  }
};

}  // namespace seqpar::attn
