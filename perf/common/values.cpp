#include "values.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace seqpar::perf {
namespace {

constexpr int kHalfBias = 15;
constexpr int kHalfFraction = 10;

uint16_t toHalf(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (value == 0) return sign;
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(value), &exponent);  // in [1/2, 1)
  const int biased = exponent - 1 + kHalfBias;
  const int shift = biased > 0 ? kHalfFraction + 1 : kHalfFraction + biased;  // fewer bits below the normal range
  const auto digits = static_cast<int>(std::ldexp(fraction, shift));
  return static_cast<uint16_t>(sign + (biased > 0 ? ((biased - 1) << kHalfFraction) : 0) + digits);
}

float fromHalf(uint16_t bits) {
  const int biased = (bits >> kHalfFraction) & 31;
  const int digits = bits & ((1 << kHalfFraction) - 1);
  float value = 0;
  if (biased == 31) {
    value = digits == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else {
    value = biased == 0
                ? std::ldexp(static_cast<float>(digits), 1 - kHalfBias - kHalfFraction)
                : std::ldexp(static_cast<float>(digits + (1 << kHalfFraction)), biased - kHalfBias - kHalfFraction);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace

const Names& typeNames() {
  static const Names names{{"float", seqparFloat32}, {"half", seqparFloat16}, {"bfloat16", seqparBfloat16}};
  return names;
}

size_t bytesOf(int type) {
  return type == seqparFloat32 ? 4 : 2;
}

void encode(std::span<const float> values, int type, void* out) {
  if (type == seqparFloat32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return;
  }
  auto* const halves = static_cast<uint16_t*>(out);
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] =
        type == seqparFloat16 ? toHalf(values[i]) : static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
  }
}

float decode(const void* data, size_t index, int type) {
  if (type == seqparFloat32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == seqparFloat16 ? fromHalf(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

size_t countWrong(const void* got, const void* want, size_t count, int type) {
  if (std::memcmp(got, want, count * bytesOf(type)) == 0) return 0;
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += decode(got, i, type) == decode(want, i, type) ? 0 : 1;
  return wrong;
}

}  // namespace seqpar::perf
