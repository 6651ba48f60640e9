// Values and input gates with given products, for kernels that apply the gates: the gates are powers of 2, so that the
// values, the products divided by them, are exact. Rows of zeros have gates of 0 and other values.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/convert.h"
#include "kernels/attn/linear/args.h"

namespace seqpar::test {

struct GatedValues {
  std::vector<char> values;
  std::vector<float> gates;     ///< [batch][tokens][heads]
  std::vector<uint16_t> halfs;  ///< the same in bf16
  bool half;

  /// `products`: the values of `layout`, which has no gaps.
  GatedValues(const std::vector<char>& products, const attn::LinearProblem& layout, uint64_t seed)
      : values(products), half(seed % 2 == 0) {
    std::mt19937_64 random(seed);
    const auto type = static_cast<seqparDataType_t>(layout.type);
    const auto width = static_cast<size_t>(layout.dv);
    const int largest = layout.type == seqparFloat16 ? 0 : 3;  // quotients may be too small for fp16
    std::vector<float> row(width);
    for (int64_t b = 0; b < layout.batch; ++b) {
      for (int64_t t = 0; t < layout.tokens; ++t) {
        for (int64_t h = 0; h < layout.heads; ++h) {
          float gate = std::ldexp(random() % 2 == 0 ? 1.0F : -1.0F, largest - static_cast<int>(random() % 7));
          const int64_t at = b * layout.v.batch + t * layout.v.token + h * layout.v.head;
          char* const bytes = values.data() + static_cast<size_t>(at) * sizeOf(type);
          toFloat(bytes, type, row.data(), width);
          if (std::any_of(row.begin(), row.end(), [](float value) { return value != 0; })) {
            for (float& value : row) value /= gate;
          } else {
            gate = 0;
            std::fill(row.begin(), row.end(), 3.0F);
          }
          gates.push_back(gate);
          fromFloat(&gate, &halfs.emplace_back(), seqparBfloat16, 1);
          fromFloat(row.data(), bytes, type, width);
        }
      }
    }
  }
  void giveTo(attn::LinearProblem& problem) const {
    problem.v.data = values.data();
    problem.inputGateType = half ? seqparBfloat16 : seqparFloat32;
    problem.inputGates = {half ? static_cast<const void*>(halfs.data()) : gates.data(), problem.tokens * problem.heads,
                          problem.heads, 1};
  }
};

}  // namespace seqpar::test
