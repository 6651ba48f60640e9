// Four lanes of fp32 in the compiler's vector extension: for any processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace seqpar {

/// The interface of every Lanes type. V is kLanes values in fp32. fetch() reads kLanes elements without conversion,
/// widen() converts them to fp32, narrow() rounds to the element type of its pointer argument, store() writes the
/// result.
struct LanesPortable {
  typedef float V __attribute__((vector_size(16)));
  typedef std::uint32_t U32 __attribute__((vector_size(16)));
  typedef std::uint16_t U16 __attribute__((vector_size(8)));

  static constexpr std::size_t kLanes = 4;

  static V zero() { return V{}; }
  static V set(float value) { return V{} + value; }

  static V fetch(const float* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
  }
  template <class T>
  static U16 fetch(const T* from) {
    U16 u;
    __builtin_memcpy(&u, from, sizeof u);
    return u;
  }

  static V widen(const float*, V v) { return v; }
  static V widen(const Bfloat16*, U16 u) { return floats(__builtin_convertvector(u, U32) << 16); }
  static V widen(const Half*, U16 u) {
    const U32 half = __builtin_convertvector(u, U32);
    const U32 shifted = (half & 0x7fffu) << 13;
    const U32 exponent = shifted & 0x0f800000u;
    const U32 normal = shifted + 0x38000000u;
    const U32 special = (shifted + 0x70000000u) | ((U32)(shifted > 0x0f800000u) & 0x00400000u);
    // A subnormal's mantissa with the exponent of the least normal value is too large by exactly that value.
    const U32 subnormal = bits(floats(shifted + 0x38800000u) - floats(U32{} + 0x38800000u));
    const U32 magnitude = select(exponent == 0x0f800000u, special, select(exponent == 0u, subnormal, normal));
    return floats(magnitude | ((half & 0x8000u) << 16));
  }

  static V narrow(const float*, V v) { return v; }
  static U16 narrow(const Bfloat16*, V v) {
    const U32 b = bits(v);
    const U32 rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return __builtin_convertvector(select((b & 0x7fffffffu) > 0x7f800000u, (b >> 16) | 0x40u, rounded), U16);
  }
  static U16 narrow(const Half*, V v) {
    const U32 b = bits(v);
    const U32 magnitude = b & 0x7fffffffu;
    const U32 normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 performs the rounding: 0.5 has an ulp equal to half precision's least subnormal.
    const U32 subnormal = bits(floats(magnitude) + 0.5f) - 0x3f000000u;
    const U32 nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    U32 half = select(magnitude < 0x38800000u, subnormal, normal);
    half = select(magnitude >= 0x47800000u, U32{} + 0x7c00u, half);
    half = select(magnitude > 0x7f800000u, nan, half);
    return __builtin_convertvector(half | ((b >> 16) & 0x8000u), U16);
  }

  template <class T, class Raw>
  static void store(T* to, Raw raw) {
    __builtin_memcpy(to, &raw, sizeof raw);
  }

  /// store() with non-temporal stores if the processor supports them; `to` is aligned to the bytes written. fence()
  /// orders streamed data before later stores.
  template <class T, class Raw>
  static void stream(T* to, Raw raw) {
    store(to, raw);
  }
  static void fence() {}

  /// c * x + s, with equal rounding at every call site; s itself if c is 0.
  static V multiplyAdd(V c, V x, V s) { return floats(select((U32)(c == zero()), bits(s), bits(c * x + s))); }

 private:
  static V floats(U32 u) { return (V)u; }
  static U32 bits(V v) { return (U32)v; }
  template <class Mask>
  static U32 select(Mask mask, U32 yes, U32 no) {
    const U32 m = (U32)mask;
    return (m & yes) | (~m & no);
  }
};

}  // namespace seqpar
