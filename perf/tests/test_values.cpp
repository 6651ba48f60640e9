#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/statistics.h"
#include "common/timing.h"
#include "common/values.h"

using namespace seqpar::perf;

TEST_CASE("Known bit patterns of half and bfloat16") {
  const std::vector<float> values{1.0f, -2.0f, 0.5f, 65504.0f, 0x1p-14f, 0x1p-24f, 0.0f};
  std::vector<uint16_t> half(values.size());
  encode(values, seqparFloat16, half.data());
  CHECK(half == std::vector<uint16_t>{0x3c00, 0xc000, 0x3800, 0x7bff, 0x0400, 0x0001, 0x0000});
  std::vector<uint16_t> bfloat(2);
  encode(std::vector<float>{1.0f, -2.0f}, seqparBfloat16, bfloat.data());
  CHECK(bfloat == std::vector<uint16_t>{0x3f80, 0xc000});
}

TEST_CASE("Every half value survives conversion through float") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = decode(&half, 0, seqparFloat16);
    if (!std::isfinite(value)) continue;
    uint16_t back = 0;
    encode(std::span(&value, 1), seqparFloat16, &back);
    if (back != half) FAIL("half " << half << " came back as " << back);
  }
  const uint16_t infinity = 0xfc00;
  CHECK(decode(&infinity, 0, seqparFloat16) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("Each spoilt element of a result is counted, in every type") {
  for (const int type : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
    CAPTURE(type);
    const std::vector<float> numbers{0, 1, -3, 0.5f};
    std::vector<unsigned char> want(numbers.size() * bytesOf(type));
    encode(numbers, type, want.data());
    std::vector<unsigned char> got = want;
    CHECK(countWrong(got.data(), want.data(), numbers.size(), type) == 0);
    got[bytesOf(type) - 1] = 0x80;  // the sign of the zero: equal in value
    CHECK(countWrong(got.data(), want.data(), numbers.size(), type) == 0);
    got[bytesOf(type)] ^= 1;  // the last bit of the one
    CHECK(countWrong(got.data(), want.data(), numbers.size(), type) == 1);
    std::fill(got.begin(), got.end(), 0xff);  // NaN
    CHECK(countWrong(got.data(), want.data(), numbers.size(), type) == 4);
    CHECK(countWrong(got.data(), got.data(), 0, type) == 0);
  }
}

TEST_CASE("Times of ranks are combined as requested, without idle ranks") {
  const std::vector<double> ranks{3, 1, Timing::kNone, 5};
  CHECK(combine(ranks, Average::Rank0) == 3);
  CHECK(combine(ranks, Average::Mean) == 3);
  CHECK(combine(ranks, Average::Least) == 1);
  CHECK(combine(ranks, Average::Most) == 5);
  CHECK(median({4, 1, 3}) == 3);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(quantile({4, 1, 3, 2}, 0.99) == 4);
  CHECK(quantile({4, 1, 3, 2}, 0.5) == 2);
}
