// Matrix products of an emulated warpgroup.
#include <algorithm>
#include <array>

#include "kernels/arch/warpgroup.h"
#include "support/emulator/cta.h"

namespace seqpar::warpgroup {
namespace {

emulator::Fiber& mine() {
  return emulator::cta->fibers[static_cast<size_t>(ptx::thread())];
}

/// 16 terms of an operand. `rows`: one term per row.
struct Terms16 {
  bool bf16;
  uint64_t descriptor;
  bool rows;

  const uint16_t* at(int line, int term) const {
    const auto field = [&](int first) { return static_cast<uint32_t>(descriptor >> first & 0x3fffU) << 4; };
    const int panels = static_cast<int>(field(16));
    const int by = rows ? line / 64 * panels + term / 8 * kGroupBytes + term % 8 * kRowBytes + line % 64 * 2
                        : line / 8 * kGroupBytes + line % 8 * kRowBytes + term * 2;
    const uint32_t address = field(0) + static_cast<uint32_t>(by);
    return reinterpret_cast<const uint16_t*>(ptx::sharedAt(address ^ (address >> 7 & 7U) << 4));
  }
  /// The 16 terms of a line.
  std::array<float, 16> values(int line) const {
    std::array<uint16_t, 16> bits;
    for (int term = 0; term < 16; term += rows ? 1 : 8) std::copy_n(at(line, term), rows ? 1 : 8, bits.begin() + term);
    std::array<float, 16> found;
    for (int term = 0; term < 16; ++term) found[term] = bf16 ? bfloatToFloat(bits[term]) : halfToFloat(bits[term]);
    return found;
  }
  /// Eight contiguous elements at a time.
  void read(int firstLine, int lines) const {
    const int stepOfLines = rows ? 8 : 1, stepOfTerms = rows ? 1 : 8;
    for (int line = firstLine; line < firstLine + lines; line += stepOfLines) {
      for (int term = 0; term < 16; term += stepOfTerms) test::reads(at(line, term), 16);
    }
  }
};

}  // namespace

void fenceProxyAsync() {
  char& mark = emulator::ownWarp().toUnits;
  test::lead(mark);
  emulator::asUnits([&] { test::follow(mark); });
}
void sync(int group) {
  ptx::barrierSync(group + 1, kThreads);
}
void commit() {
  mine().committed.push_back(std::move(mine().products));
  mine().products.clear();
}
void wait(int left) {
  auto& groups = mine().committed;
  while (static_cast<int>(groups.size()) > left) {
    for (const auto& product : groups.front()) product();
    groups.pop_front();
  }
  emulator::together(emulator::meet(10), [] {});
  emulator::followUnits();
}

void multiplyLater(bool bf16, float (*c)[4], int tiles, uint64_t a, bool rowsA, const uint32_t* words, uint64_t b,
                   bool rowsB, bool add) {
  const int lane = emulator::lane(), firstRow = ptx::thread() % kThreads / 32 * 16;
  emulator::Meeting& warp = emulator::meet(11);
  if (words != nullptr) std::copy_n(words, 4, warp.in[lane]);
  emulator::together(warp, [&] {
    for (int l = 0; l < 32; ++l) std::copy_n(warp.in[l], 4, warp.out[l]);
  });
  std::array<std::array<float, 16>, 2> left{};
  for (int i = 0; i < 4 && words != nullptr; ++i) {
    for (int from = 0; from < 4; ++from) {
      const uint32_t pair = warp.out[lane / 4 * 4 + from][i];
      for (int e = 0; e < 2; ++e) {
        const auto bits = static_cast<uint16_t>(pair >> (16 * e));
        left[i % 2][i / 2 * 8 + from * 2 + e] = bf16 ? bfloatToFloat(bits) : halfToFloat(bits);
      }
    }
  }
  const bool memory = words == nullptr;
  const Terms16 ofA{bf16, a, rowsA}, ofB{bf16, b, rowsB};
  const auto read = [=] {  // once a warp
    if (lane != 0) return;
    emulator::asUnits([&] {
      if (memory) ofA.read(firstRow, 16);
      ofB.read(0, tiles * 8);
    });
  };
  read();
  mine().products.push_back([=] {
    read();
    auto values = left;
    if (memory) {
      for (int r = 0; r < 2; ++r) values[r] = ofA.values(firstRow + lane / 4 + r * 8);
    }
    for (int n = 0; n < tiles; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      const std::array<float, 16> right[2] = {ofB.values(column), ofB.values(column + 1)};
      float sums[4];
      for (int e = 0; e < 4; ++e) sums[e] = add ? c[n][e] : 0.f;
      for (int k = 0; k < 16; ++k) {
        for (int e = 0; e < 4; ++e) sums[e] += values[e / 2][k] * right[e % 2][k];
      }
      std::copy_n(sums, 4, c[n]);
    }
  });
}

}  // namespace seqpar::warpgroup
