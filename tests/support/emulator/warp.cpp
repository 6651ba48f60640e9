// Warp-collective operations of an emulated warp: matrices, shuffles, products.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/arch/mma.h"
#include "support/emulator/cta.h"

namespace seqpar::ptx {
namespace {

using namespace emulator;

uint16_t half(uint32_t both, int which) {
  return static_cast<uint16_t>(both >> (16 * which));
}

void load(uint32_t (&to)[4], const void* row, bool transposed) {
  Meeting& warp = meet(transposed ? 2 : 1);
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw std::logic_error("a row of a matrix is not aligned");
  const char* first = cta->shared.data();
  if (row < first || static_cast<const char*>(row) + 16 > first + cta->shared.size()) {
    throw std::logic_error("a row of a matrix is not in shared memory");
  }
  test::reads(row, 16);
  warp.rows[lane()] = row;
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const int r = transposed ? l % 4 * 2 + e : l / 4;
          const int c = transposed ? l / 4 : l % 4 * 2 + e;
          pair[e] = static_cast<const uint16_t*>(warp.rows[m * 8 + r])[c];
        }
        warp.out[l][m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
      }
    }
  });
  std::copy_n(warp.out[lane()], 4, to);
}

}  // namespace

float shfl(float value, int from) {
  Meeting& warp = meet(3);
  warp.in[lane()][0] = std::bit_cast<uint32_t>(value);
  const int me = lane();
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) warp.out[l][0] = warp.in[l][0];
  });
  (void)me;
  return std::bit_cast<float>(warp.out[from & 31][0]);
}
float shflXor(float value, int mask) {
  return shfl(value, lane() ^ mask);
}

uint32_t reduxMax(uint32_t x) {
  for (int mask = 1; mask < 32; mask *= 2) x = std::max(x, asBits(shflXor(asFloat(x), mask)));
  return x;
}

float ex2ApproxOfDecay(float x) {
  if (x > 0) throw std::logic_error("an exponent above 0");
  return ex2Approx(x);
}

void ldmatrixX4(uint32_t (&to)[4], const void* row) {
  load(to, row, false);
}
void ldmatrixX4Trans(uint32_t (&to)[4], const void* row) {
  load(to, row, true);
}

void stmatrixX4(void* row, const uint32_t (&from)[4]) {
  Meeting& warp = meet(9);
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw std::logic_error("a row of a matrix is not aligned");
  test::writes(row, 16);
  warp.rows[lane()] = row;
  std::copy_n(from, 4, warp.in[lane()]);
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        auto* to = static_cast<uint16_t*>(const_cast<void*>(warp.rows[m * 8 + l / 4])) + l % 4 * 2;
        for (int e = 0; e < 2; ++e) to[e] = half(warp.in[l][m], e);
      }
    }
  });
}

void stmatrixX4Trans(void* row, const uint32_t (&from)[4]) {
  const uint32_t turned[4] = {movmatrixTrans(from[0]), movmatrixTrans(from[1]), movmatrixTrans(from[2]),
                              movmatrixTrans(from[3])};
  stmatrixX4(row, turned);
}

uint32_t movmatrixTrans(uint32_t pair) {
  Meeting& warp = meet(4);
  warp.in[lane()][0] = pair;
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) {
      uint16_t to[2];
      for (int e = 0; e < 2; ++e) {  // element (row l/4, column l%4*2+e) of the result
        const int r = l % 4 * 2 + e, c = l / 4;
        to[e] = half(warp.in[r * 4 + c / 2][0], c % 2);
      }
      warp.out[l][0] = to[0] | static_cast<uint32_t>(to[1]) << 16;
    }
  });
  return warp.out[lane()][0];
}

void mmaM16N8K16Of(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Meeting& warp = meet(bf16 ? 5 : 6);
  std::copy_n(a, 4, warp.in[lane()]);
  warp.in[lane()][4] = b0;
  warp.in[lane()][5] = b1;
  together(warp, [&] {
    const auto number = [&](uint32_t both, int which) {
      return bf16 ? bfloatToFloat(half(both, which)) : halfToFloat(half(both, which));
    };
    float left[16][16], right[16][8];
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, t = l % 4 * 2;
      for (int e = 0; e < 2; ++e) {
        for (int r = 0; r < 4; ++r) left[g + r % 2 * 8][t + e + r / 2 * 8] = number(warp.in[l][r], e);
        for (int r = 0; r < 2; ++r) right[t + e + r * 8][g] = number(warp.in[l][4 + r], e);
      }
    }
    for (int l = 0; l < 32; ++l) {
      for (int e = 0; e < 4; ++e) {
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += left[l / 4 + e / 2 * 8][k] * right[k][l % 4 * 2 + e % 2];
        warp.out[l][e] = std::bit_cast<uint32_t>(sum);
      }
    }
  });
  for (int e = 0; e < 4; ++e) c[e] += std::bit_cast<float>(warp.out[lane()][e]);
}

void mmaM16N8K8Tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Meeting& warp = meet(7);
  std::copy_n(a, 4, warp.in[lane()]);
  warp.in[lane()][4] = b0;
  warp.in[lane()][5] = b1;
  together(warp, [&] {
    const auto number = [](uint32_t bits) { return std::bit_cast<float>(bits & 0xffffe000u); };
    for (int l = 0; l < 32; ++l) {
      for (int e = 0; e < 4; ++e) {
        float sum = 0;
        for (int k = 0; k < 8; ++k) {
          const int row = l / 4 * 4 + k % 4, column = (l % 4 * 2 + e % 2) * 4 + k % 4;
          sum += number(warp.in[row][e / 2 + k / 4 * 2]) * number(warp.in[column][4 + k / 4]);
        }
        warp.out[l][e] = std::bit_cast<uint32_t>(sum);
      }
    }
  });
  for (int e = 0; e < 4; ++e) c[e] += std::bit_cast<float>(warp.out[lane()][e]);
}

}  // namespace seqpar::ptx
