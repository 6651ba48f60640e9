// Problems for tests of the host block kernel on bf16 inputs.
#pragma once

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "amx_emulated.h"
#include "attn/block/host.h"
#include "base/convert.h"

namespace seqpar::attn::bf16_case {

/// All kernels that this processor supports, and AMX with emulated tile registers.
inline std::vector<Bf16Kernels> testedKernels() {
  const auto supported = supportedBf16Kernels();
  std::vector<Bf16Kernels> tested(supported.begin(), supported.end());
#if defined(__x86_64__)
  if (!tested.empty()) {
    tested.push_back(tested.front());
    tested.back().name = "emulated AMX";
    tested.back().multiply = multiplyBf16AmxEmulated;
    tested.back().forward = forwardBf16AmxEmulated;
    tested.back().backward = backwardBf16AmxEmulated;
  }
#endif
  return tested;
}

/// `count` values in bf16, and the same as fp32.
struct Values {
  Values(size_t count, std::mt19937& random) : bits(count), exact(count) {
    std::normal_distribution<float> normal;
    for (float& value : exact) value = normal(random);
    round();
  }
  void round() {
    seqpar::fromFloat(exact.data(), bits.data(), seqparBfloat16, exact.size());
    seqpar::toFloat(bits.data(), seqparBfloat16, exact.data(), exact.size());
  }
  std::vector<uint16_t> bits;
  std::vector<float> exact;
};

struct Problem {
  BlockShape shape;
  int64_t rows, columns;
  std::vector<Rectangle> rectangles;  ///< with disjoint pairs of a row and a column
};

inline Problem draw(std::mt19937& random) {
  const auto upTo = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % static_cast<unsigned>(most)); };
  Problem p;
  p.shape.type = seqparBfloat16;
  p.shape.kvHeads = upTo(2);
  p.shape.group = upTo(3);
  p.shape.heads = p.shape.kvHeads * p.shape.group;
  p.shape.headDim = random() % 2 == 0 ? 64 : upTo(80);
  p.shape.valueDim = random() % 2 == 0 ? 48 : upTo(80);
  p.shape.scale = 1 / std::sqrt(static_cast<float>(p.shape.headDim));
  if (random() % 2 == 0) p.shape.scale *= 4;  // the largest score grows within a tile of keys
  if (random() % 3 == 0) p.shape.softcap = 1.5f;
  p.rows = upTo(150);
  p.columns = 40 + upTo(random() % 3 == 0 ? 2400 : 300);
  const int64_t border = upTo(p.columns - 33);
  p.rectangles = {{0, p.rows, 0, border}, {0, p.rows, border, p.columns - border}};
  p.rectangles[1].upper = upTo(200) - 60;
  p.rectangles[1].lower = p.rectangles[1].upper - upTo(150);
  return p;
}

inline bool sees(const Rectangle& r, int64_t row, int64_t column) {
  const int64_t i = row - r.row, j = column - r.column;
  return i >= 0 && i < r.rows && j >= 0 && j < r.columns && j - i >= r.lower && j - i <= r.upper;
}

struct Inputs {
  Values q, k, v;
};

/// One head of 32 channels, 20 queries and 90 keys.
inline Problem smallProblem(std::vector<Rectangle> rectangles) {
  Problem p;
  p.shape.type = seqparBfloat16;
  p.shape.headDim = p.shape.valueDim = 32;
  p.rows = 20;
  p.columns = 90;
  p.rectangles = std::move(rectangles);
  return p;
}

struct BlockWithMemory {
  BlockWithMemory(const Problem& p, const Bf16Kernels* kernels, int threads)
      : exec(threads, nullptr), block(exec, p.shape, kernels) {
    Arena counting;
    block.carve(counting);
    memory = exec.allocate(counting.used(), "a test");
    Arena arena(memory.get());
    block.carve(arena);
  }
  HostExec exec;
  HostBlock block;
  decltype(exec.allocate(0, "")) memory;
};

}  // namespace seqpar::attn::bf16_case
