// Conversions between the element types, against a reference that computes with doubles and knows no bit tricks.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/convert.h"
#include "base/convert_kernels.h"
#include "unit/seed.h"

using namespace seqpar;

namespace {

struct Format {
  seqparDataType_t type;
  int digits;       // of the significand, the hidden one included
  int minExponent;  // of the least normal number
  int maxExponent;
};

const Format kFp16 = {seqparFloat16, 11, -14, 15};
const Format kBf16 = {seqparBfloat16, 8, -126, 127};

double decode(const Format& format, std::uint16_t bits) {
  const int digits = format.digits - 1;
  const int fraction = bits & ((1 << digits) - 1);
  const int exponent = (bits & 0x7fff) >> digits;
  const int special = 0x7fff >> digits;
  double value = 0;
  if (exponent == special) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, format.minExponent - digits);
  } else {
    value = std::ldexp(fraction + (1 << digits), format.minExponent + exponent - 1 - digits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

double nearest(const Format& format, double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(value), format.minExponent) - (format.digits - 1));
  const double rounded = std::nearbyint(value / quantum) * quantum;
  if (std::abs(rounded) >= std::ldexp(1.0, format.maxExponent + 1)) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return rounded;
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

std::vector<std::uint16_t> allBits() {
  std::vector<std::uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

std::vector<std::uint16_t> narrow(Isa isa, const Format& format, const std::vector<float>& from) {
  std::vector<std::uint16_t> to(from.size());
  convertKernels(isa).kernel[seqparFloat32][format.type](from.data(), to.data(), from.size());
  return to;
}

// Number of inputs that do not become the nearest number of the format.
size_t wrongRoundings(Isa isa, const Format& format, const std::vector<float>& from) {
  const std::vector<std::uint16_t> to = narrow(isa, format, from);
  size_t wrong = 0;
  for (size_t i = 0; i < from.size(); ++i) wrong += !same(decode(format, to[i]), nearest(format, from[i]));
  return wrong;
}

}  // namespace

TEST_CASE("every 16-bit value survives conversion through fp32") {
  const std::vector<std::uint16_t> bits = allBits();
  for (const Isa isa : supportedIsas()) {
    for (const Format& format : {kFp16, kBf16}) {
      CAPTURE(isaName(isa), typeName(format.type));
      std::vector<float> wide(bits.size());
      convertKernels(isa).kernel[format.type][seqparFloat32](bits.data(), wide.data(), bits.size());
      const std::vector<std::uint16_t> back = narrow(isa, format, wide);
      size_t wrongValue = 0;
      size_t wrongBack = 0;
      for (size_t i = 0; i < bits.size(); ++i) {
        const double value = decode(format, bits[i]);
        wrongValue += !same(wide[i], value);
        wrongBack += std::isnan(value) ? !std::isnan(decode(format, back[i])) : back[i] != bits[i];
      }
      CHECK(wrongValue == 0);
      CHECK(wrongBack == 0);
    }
  }
}

TEST_CASE("fp32 rounds to nearest, ties to even, at and next to every tie") {
  for (const Isa isa : supportedIsas()) {
    for (const Format& format : {kFp16, kBf16}) {
      CAPTURE(isaName(isa), typeName(format.type));
      const double above = std::ldexp(1.0, format.maxExponent + 1);
      std::vector<float> ties;
      for (std::uint16_t bits = 0; std::isfinite(decode(format, bits)); ++bits) {
        double next = decode(format, static_cast<std::uint16_t>(bits + 1));
        if (!std::isfinite(next)) next = above;
        const float tie = static_cast<float>((decode(format, bits) + next) / 2);
        for (const float value : {std::nextafterf(tie, 0), tie, std::nextafterf(tie, INFINITY)}) {
          ties.push_back(value);
          ties.push_back(-value);
        }
      }
      REQUIRE(ties.size() > 6 * 30000);
      CHECK(wrongRoundings(isa, format, ties) == 0);
    }
  }
}

TEST_CASE("fp32 rounds to the nearest value equally on every instruction set") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  std::vector<float> any(1 << 18);
  for (float& value : any) {
    const auto bits = static_cast<std::uint32_t>(random());
    std::memcpy(&value, &bits, sizeof value);
  }
  const float special[] = {0.0F,
                           -0.0F,
                           INFINITY,
                           -INFINITY,
                           NAN,
                           -NAN,
                           65504.0F,
                           65519.99F,
                           65520.0F,
                           3.4028235e38F,
                           std::numeric_limits<float>::denorm_min(),
                           std::numeric_limits<float>::min()};
  std::copy(std::begin(special), std::end(special), any.begin());
  for (const Format& format : {kFp16, kBf16}) {
    const std::vector<std::uint16_t> portable = narrow(Isa::Portable, format, any);
    for (const Isa isa : supportedIsas()) {
      CAPTURE(isaName(isa), typeName(format.type));
      CHECK(wrongRoundings(isa, format, any) == 0);
      CHECK(narrow(isa, format, any) == portable);
    }
  }
}

TEST_CASE("a NaN whose only digits are the lowest ones stays NaN") {
  const std::uint32_t bits[] = {0x7f800001u, 0xff800001u, 0x7f801000u, 0xffbfffffu};
  std::vector<float> nans(std::size(bits));
  std::memcpy(nans.data(), bits, sizeof bits);
  for (const Isa isa : supportedIsas()) {
    for (const Format& format : {kFp16, kBf16}) {
      for (const std::uint16_t result : narrow(isa, format, nans)) CHECK(std::isnan(decode(format, result)));
    }
  }
}

TEST_CASE("any count, any pair of types: the elements are written and nothing else is") {
  const seqparDataType_t types[] = {seqparFloat32, seqparFloat16, seqparBfloat16};
  for (const seqparDataType_t from : types) {
    for (const seqparDataType_t to : types) {
      for (size_t count = 0; count < 70; ++count) {
        CAPTURE(typeName(from), typeName(to), count);
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - 30.0F;
        std::vector<std::byte> source(count * 4);
        fromFloat(values.data(), source.data(), from, count);
        std::vector<std::byte> target(count * 4 + 64, std::byte{0x5a});
        convert(source.data(), from, target.data(), to, count);
        std::vector<float> back(count);
        toFloat(target.data(), to, back.data(), count);
        REQUIRE(back == values);
        for (size_t i = count * sizeOf(to); i < target.size(); ++i) REQUIRE(target[i] == std::byte{0x5a});
      }
    }
  }
}

TEST_CASE("a missing source reads as zeros") {
  std::vector<std::uint16_t> target(5, 0xffff);
  convert(nullptr, seqparFloat32, target.data(), seqparBfloat16, 4);
  CHECK(target == std::vector<std::uint16_t>{0, 0, 0, 0, 0xffff});
}
