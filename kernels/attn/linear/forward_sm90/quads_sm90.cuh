// Groups of four adjacent channels of a chunk's tokens, per thread: 8 bytes of a matrix, 16 of fp32 gates.
#pragma once

#include "kernels/attn/linear/forward_sm90/pipeline_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// A transform thread's part of a chunk: four channels, and 16 tokens.
struct QuadLane {
  static_assert(Shape::kKeyTiles == 2, "a thread has 16 tokens of four channels");
  int half, quarter;        ///< of the chunk: 32 tokens, and the thread's 16 of them
  int tile, quad, channel;  ///< channels `channel` to `channel` + 3, at index `quad` in a row of the tile

  SEQPAR_DEVICE QuadLane() {
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    half = thread / 64;
    quarter = thread / 16 % 2 + 2 * half;
    tile = thread / 32 % 2;
    quad = thread % 16;
    channel = kSwizzleColumns * tile + 4 * quad;
  }
  SEQPAR_DEVICE int firstToken() const { return 16 * quarter; }
  /// The byte offset, in a matrix, of the channels of a token.
  SEQPAR_DEVICE int offset(int token) const { return tile * kTileBytes + swizzled(token, 8 * quad); }
};

SEQPAR_DEVICE float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
SEQPAR_DEVICE float4 operator*(float a, float4 b) {
  return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}
SEQPAR_DEVICE float4 operator*(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
SEQPAR_DEVICE float4 fma(float a, float4 b, float4 c) {
  return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}
SEQPAR_DEVICE float4 exp2Quad(float4 x) {
  return make_float4(ptx::ex2Approx(x.x), ptx::ex2Approx(x.y), ptx::ex2Approx(x.z), ptx::ex2Approx(x.w));
}
SEQPAR_DEVICE float least(float4 x) {
  return fminf(fminf(x.x, x.y), fminf(x.z, x.w)) + 0 * (x.x + x.y + x.z + x.w);  // NaN if any is
}
SEQPAR_DEVICE float largest(float4 x) {
  return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

}  // namespace seqpar::attn::forward_sm90
