#include "attn/block/host_rows.h"

#include <bit>
#include <cstdint>
#include <limits>

#include "base/vector_loops.h"

namespace seqpar::attn::rows {
namespace {

/// Vectors of the compiler: reductions of its loops would add or compare one lane after the other in the end.
constexpr size_t kLanes = 16;
typedef float V16 __attribute__((vector_size(kLanes * sizeof(float))));

[[gnu::always_inline]] inline V16 load(const float* from) {
  V16 v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

[[gnu::always_inline]] inline V16 loadSome(const float* from, size_t count, float others) {
  V16 v = V16{} + others;
  __builtin_memcpy(&v, from, count * sizeof(float));
  return v;
}

template <class T>
[[gnu::always_inline]] inline T larger(T a, T b) {
  return a > b ? a : b;
}

/// The sum or maximum of the lanes.
template <class Two>
[[gnu::always_inline]] inline float across(V16 v, const Two& two) {
  const auto of8 = two(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  const auto of4 = two(__builtin_shufflevector(of8, of8, 0, 1, 2, 3), __builtin_shufflevector(of8, of8, 4, 5, 6, 7));
  const auto of2 = two(__builtin_shufflevector(of4, of4, 0, 1), __builtin_shufflevector(of4, of4, 2, 3));
  return two(float{of2[0]}, float{of2[1]});
}

template <class T>
struct IntegersOf {
  using Type = uint32_t;
};
template <>
struct IntegersOf<V16> {
  typedef uint32_t Type __attribute__((vector_size(kLanes * sizeof(uint32_t))));
};

/// exp(x) for x of at most 88: 2^n exp(r) with n the nearest integer to x / ln 2 and a polynomial for exp(r). Below
/// -88, where 2^n would be subnormal, it is 0. NaN stays NaN. The compiler joins both choices into one mask.
template <class T>
[[gnu::always_inline]] inline T exponential(T x) {
  using Integers = typename IntegersOf<T>::Type;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const T shifted = x * 1.44269504f + kRounder;
  const T n = shifted - kRounder;
  const T r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const T p = exponentialNearZero(r);
  const Integers bits = (__builtin_bit_cast(Integers, shifted) - std::bit_cast<uint32_t>(kRounder) + 127u) << 23;
  const T none{};
  return x < none - 88.0f ? none : p * __builtin_bit_cast(T, bits);
}

/// tanh(x) = (1 - e) / (1 + e) with e = exp(-2 |x|). Near 0, where that cancels, its series.
inline float hyperbolicTangent(float x) {
  const float size = x < 0 ? -x : x;
  const float e = exponential(-2 * size);
  const float far = (1 - e) / (1 + e);
  const float square = x * x;
  const float near = size * (1 + square * (-1.0f / 3 + square * (2.0f / 15 - square * (17.0f / 315))));
  const float value = size < 0.25f ? near : far;
  return x < 0 ? -value : value;
}

}  // namespace

SEQPAR_VECTOR_CLONES float largest(const float* row, size_t count) {
  const float none = -std::numeric_limits<float>::infinity();
  V16 most = V16{} + none;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) most = larger(load(row + i), most);
  if (i < count) most = larger(loadSome(row + i, count - i, none), most);
  return across(most, [](auto a, auto b) { return larger(a, b); });
}

SEQPAR_VECTOR_CLONES float exponentiate(float* row, size_t count, float shift) {
  V16 sum{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const V16 value = exponential(load(row + i) - shift);
    __builtin_memcpy(row + i, &value, sizeof value);
    sum += value;
  }
  if (i < count) {
    const V16 value = exponential(loadSome(row + i, count - i, -std::numeric_limits<float>::infinity()) - shift);
    __builtin_memcpy(row + i, &value, (count - i) * sizeof(float));
    sum += value;
  }
  return across(sum, [](auto a, auto b) { return a + b; });
}

SEQPAR_VECTOR_CLONES void cap(float* row, size_t count, float cap) {
  const float inverse = 1 / cap;
#pragma omp simd
  for (size_t i = 0; i < count; ++i) row[i] = cap * hyperbolicTangent(row[i] * inverse);
}

SEQPAR_VECTOR_CLONES void softmaxGradient(const float* row, float* gradient, size_t count, float delta) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) gradient[i] = row[i] * (gradient[i] - delta);
}

SEQPAR_VECTOR_CLONES void capGradient(const float* capped, float* gradient, size_t count, float delta, float cap) {
  const float inverse = 1 / cap;
#pragma omp simd
  for (size_t i = 0; i < count; ++i)
    gradient[i] = (gradient[i] - delta) * (1 - capped[i] * inverse * (capped[i] * inverse));
}

SEQPAR_VECTOR_CLONES void scale(float* row, size_t count, float factor) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) row[i] *= factor;
}

SEQPAR_VECTOR_CLONES void scaledCopy(const float* from, size_t count, float factor, float* to) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

SEQPAR_VECTOR_CLONES void blend(float* to, float a, const float* from, float b, size_t count) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] = a * to[i] + b * from[i];
}

SEQPAR_VECTOR_CLONES float dot(const float* a, const float* b, size_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace seqpar::attn::rows
