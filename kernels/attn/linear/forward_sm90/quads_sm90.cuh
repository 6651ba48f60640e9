// Groups of four adjacent channels of a chunk's tokens, per thread: 8 bytes of a matrix, 16 of fp32 gates.
#pragma once

#include "kernels/attn/linear/forward_sm90/pipeline_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// The thread's number in its warpgroup. Reads threadIdx.x again: nothing derived from it is kept in registers.
SEQPAR_DEVICE int opaqueThread() {
  return static_cast<int>(static_cast<unsigned>(ptx::opaqueThread()) % kGroupThreads);
}

/// A transform thread's part of a chunk: four channels, and 16 tokens.
struct QuadLane {
  static_assert(Shape::kKeyTiles == 2, "a thread has 16 tokens of four channels");
  int half, quarter;        ///< of the chunk: 32 tokens, and the thread's 16 of them
  int tile, quad, channel;  ///< channels `channel` to `channel` + 3, at index `quad` in a row of the tile

  SEQPAR_DEVICE QuadLane() : QuadLane(static_cast<int>(threadIdx.x) % kGroupThreads) {}
  static SEQPAR_DEVICE QuadLane opaque() { return QuadLane(opaqueThread()); }
  SEQPAR_DEVICE explicit QuadLane(int thread) {
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

/// Gates of four channels; 0 unless `there`. Volatile order, so that the compiler need not keep addresses.
template <GateKind Kind>
SEQPAR_DEVICE float4 readQuad(const char* at, bool there) {
  float4 four;
#ifndef __CUDACC__
  if (!there) return make_float4(0, 0, 0, 0);
  if constexpr (Kind == GateKind::Full) return *reinterpret_cast<const float4*>(at);
  const auto* const words = reinterpret_cast<const uint32_t*>(at);
  const float2 a = Numbers<Bfloat16>::unpack(words[0]), b = Numbers<Bfloat16>::unpack(words[1]);
  four = make_float4(a.x, a.y, b.x, b.y);
#else
  if constexpr (Kind == GateKind::Full) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
        "mov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
        "@p ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&f"(four.x), "=&f"(four.y), "=&f"(four.z), "=&f"(four.w)
        : "l"(at), "r"(there ? 1 : 0));
  } else {
    uint32_t low, high;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
        "@p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n}"
        : "=&r"(low), "=&r"(high)
        : "l"(at), "r"(there ? 1 : 0));
    const float2 a = Numbers<Bfloat16>::unpack(low), b = Numbers<Bfloat16>::unpack(high);
    four = make_float4(a.x, a.y, b.x, b.y);
  }
#endif
  return four;
}

SEQPAR_DEVICE float4 quadOf(float x) {
  return make_float4(x, x, x, x);
}
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
template <class T>
SEQPAR_DEVICE float4 unpackedQuad(uint2 words) {
  const float2 low = Numbers<T>::unpack(words.x), high = Numbers<T>::unpack(words.y);
  return make_float4(low.x, low.y, high.x, high.y);
}
SEQPAR_DEVICE float least(float4 x) {
  return fminf(fminf(x.x, x.y), fminf(x.z, x.w)) + 0 * (x.x + x.y + x.z + x.w);  // NaN if any is
}
SEQPAR_DEVICE float largest(float4 x) {
  return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

}  // namespace seqpar::attn::forward_sm90
