// Powers of 2 that a chunk's queries and keys in fp16 are multiplied by, with channel decays
// (transform_channels_sm90.cuh).
#pragma once

#include "kernels/arch/half_pair.h"
#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/quads_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// The exponents, of a head.
struct Powers {
  float queries = 0, keys = 0;
};

/// Stores a warp's largest query and key of a stage, as fp16 without signs, for powersOf(); a barrier follows.
template <class Layout>
SEQPAR_DEVICE void findLargest(char* stage, const QuadLane& me) {
  uint32_t largest[2][2] = {};  // two chains of each
  const int start = ptx::opaque(me.offset(me.firstToken()));
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    const int at = (start ^ t % 8 << 4) + t * kRowBytes;
    const uint2 query = *reinterpret_cast<const uint2*>(stage + Layout::kQueries + at),
                key = *reinterpret_cast<const uint2*>(stage + Layout::kKeys + at);
    largest[0][0] = ptx::maxAbsF16x2(largest[0][0], query.x);
    largest[0][1] = ptx::maxAbsF16x2(largest[0][1], query.y);
    largest[1][0] = ptx::maxAbsF16x2(largest[1][0], key.x);
    largest[1][1] = ptx::maxAbsF16x2(largest[1][1], key.y);
  }
  const auto ofWarp = [](const uint32_t(&all)[2]) {
    const uint32_t two = ptx::maxAbsF16x2(all[0], all[1]);
    return ptx::reduxMax(max(two & 0x7fffU, two >> 16 & 0x7fffU));
  };
  const uint32_t query = ofWarp(largest[0]), key = ofWarp(largest[1]);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % 32 == 0) reinterpret_cast<uint32_t*>(stage + Layout::kInverses)[thread / 32 % 4] = query << 16 | key;
}

/// Of a head, which has all channels, or those of a tile if there are two heads. Products with powers of 2 of up to
/// kRange do not exceed the range of fp16 then.
template <class Layout, int HeadCount, int kRange>
SEQPAR_DEVICE Powers powersOf(const char* stage, int head) {
  const auto* const of = reinterpret_cast<const uint32_t*>(stage + Layout::kInverses);
  uint32_t query = 0, key = 0;
#pragma unroll
  for (int warp = 0; warp < 4; ++warp) {
    if (HeadCount > 1 && warp % 2 != head) continue;
    query = max(query, of[warp] >> 16);
    key = max(key, of[warp] & 0xffffU);
  }
  // An element is below 2^(exponent - 14), with a bias of 15; an exponent of 31 is not finite.
  const auto powerOf = [](uint32_t half) {
    return static_cast<float>(16 + 14 - kRange - static_cast<int>(min(half >> 10, 30U)));
  };
  return {powerOf(query), powerOf(key)};
}

}  // namespace seqpar::attn::forward_sm90
