// Gradients that a kernel writes in 16 bits, as terms of the checks of linear_backward_check.h.
#pragma once

#include <vector>

#include "kernels/arch/ptx.h"
#include "kernels/attn/linear/backward/task.h"

namespace seqpar::attn::backward::test {

/// A gradient in T that the kernel adds over a group; later it is the term of the group's first head.
template <class T>
struct Rounded {
  std::vector<uint16_t> numbers;
  Target of, to;
  int64_t rows;
  int heads, width;

  Rounded(Target& target, const Task& task, int ofHeads, int columns, bool wide)
      : to(target), rows(task.batch * task.tokens), heads(ofHeads), width(columns) {
    numbers.assign(static_cast<size_t>(rows * heads * width) + 8, 0xffff);
    auto* data = numbers.data();
    while (reinterpret_cast<uintptr_t>(data) % 16 != 0) ++data;
    const int64_t token = int64_t{heads} * width;
    of = {data, task.tokens * token, token, width, 0, ptx::kIsBf16<T> ? seqparBfloat16 : seqparFloat16, wide};
    target = of;
  }
  void expand(int allHeads) const {
    const int each = allHeads / heads;
    auto* terms = static_cast<float*>(to.data);
    std::fill_n(terms, rows * allHeads * to.head, 0.f);
    for (int64_t row = 0; row < rows; ++row) {
      for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < width; ++i) {
          const uint16_t bits = static_cast<const uint16_t*>(of.data)[(row * heads + head) * width + i];
          terms[(row * allHeads + int64_t{head} * each) * to.head + i] = ptx::lowOf<T>(bits);
        }
      }
    }
  }
};

}  // namespace seqpar::attn::backward::test
