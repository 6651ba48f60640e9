// The scores of a stage, q_i k_j with the decays from j to i, for j <= i: three blocks of 16 x 16. A warp computes half
// of a block, 8 keys; all warps read the rounded blocks, as A of scores times v.
#pragma once

#include "kernels/attn/linear/prepare.cuh"
#include "kernels/attn/linear/stage.cuh"

namespace seqpar::attn {

constexpr int kScoreBlocks = 3;  ///< (queries, keys): (first 16, first 16), (second, first), (second, second)
constexpr int kScoreBytes = kScoreBlocks * 32 * 16;

/// `exactGroups`: with channel decays, the groups with precomputed scores within blocks. `sum`: without them, of this
/// lane's token. `to`: uint2 [blocks][32][2].
template <class T, class Shape, bool PerChannel>
SEQPAR_DEVICE void makeScores(uint2* to, uint32_t queries, uint32_t keys, char* gates, uint32_t exactGroups, float sum,
                              int warp, int lane) {
  using KeyTile = Tile<Shape::kDk>;
  const ptx::AccumulatorLayout layout{lane};
  for (int unit = warp; unit < 2 * kScoreBlocks; unit += Shape::kWarps) {
    const int block = unit / 2, tile = unit % 2;
    const int firstQuery = block > 0 ? 16 : 0, firstKey = (block > 1 ? 16 : 0) + 8 * tile;
    const uint32_t a = KeyTile::fragment(queries, firstQuery, lane), b = KeyTile::fragmentWide(keys, firstKey, lane);
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int step = 0; step < Shape::kSteps; step += 2) {
      uint32_t left[4], right[4], wide[4];
      ptx::ldmatrixX4(wide, b + 32 * step);
      ptx::ldmatrixX4(left, a + 32 * step);
      ptx::ldmatrixX4(right, a + 32 * step + 32);
      const auto isExact = [&](int at) { return PerChannel && (exactGroups >> (16 * at / Shape::kGroup) & 1) != 0; };
      if (!isExact(step)) Numbers<T>::multiply(even, left, wide[0], wide[1]);
      if (!isExact(step + 1)) Numbers<T>::multiply(odd, right, wide[2], wide[3]);
    }
    float scores[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[e] = even[e] + odd[e];
    if (PerChannel && exactGroups != 0 && block != 1) {
      for (int group = 0; group < Shape::kWarps; ++group) {
        if ((exactGroups >> group & 1) == 0) continue;
        const float4 made = PrepareGroup<T, Shape>::scoresAt(gates, group, lane)[block + tile];
        scores[0] += made.x;
        scores[1] += made.y;
        scores[2] += made.z;
        scores[3] += made.w;
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = layout.row(firstQuery, e), key = layout.column(firstKey, e);
      if (!PerChannel) {
        const float ofQuery = __shfl_sync(0xffffffffU, sum, query), ofKey = __shfl_sync(0xffffffffU, sum, key);
        scores[e] *= ptx::ex2Approx(fminf(ofQuery - ofKey, 0));
      }
      // Assigned, not multiplied by 0: they may have overflowed.
      if (key > query) scores[e] = 0;
    }
    to[(block * 32 + lane) * 2 + tile] =
        make_uint2(Numbers<T>::pack(scores[0], scores[1]), Numbers<T>::pack(scores[2], scores[3]));
  }
}

}  // namespace seqpar::attn
