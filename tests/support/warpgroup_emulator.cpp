#include <array>
#include <deque>
#include <functional>
#include <vector>

#include "kernels/attn/linear/warpgroup_ops.h"

namespace seqpar::attn::warpgroup {
namespace {

using Group = std::vector<std::function<void()>>;
struct Queue {
  std::deque<Group> committed;
  Group open;
};
std::vector<Queue> queues(1024);  // of each thread of the CTA
Queue& mine() {
  return queues[static_cast<size_t>(warp::thread())];
}

float numberAt(bool bf16, uintptr_t address) {
  const uintptr_t swizzled = address ^ ((address >> 7 & 7) << 4);
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(swizzled);
  return bf16 ? bfloatToFloat(bits) : halfToFloat(bits);
}

/// Number (line, term) of an operand: `rows`: one term a row.
float numberOf(bool bf16, const Operand& operand, int offset, bool rows, int line, int term) {
  const auto start = reinterpret_cast<uintptr_t>(operand.start) + static_cast<uintptr_t>(offset);
  const int at = rows ? line / 64 * operand.panels + term / 8 * kGroupBytes + term % 8 * kRowBytes + line % 64 * 2
                      : line / 8 * kGroupBytes + line % 8 * kRowBytes + term * 2;
  return numberAt(bf16, start + static_cast<uintptr_t>(at));
}

}  // namespace

void begin() {}
void commit() {
  mine().committed.push_back(std::move(mine().open));
  mine().open.clear();
}
void awaitAllBut(int left) {
  auto& groups = mine().committed;
  while (static_cast<int>(groups.size()) > left) {
    for (const auto& product : groups.front()) product();
    groups.pop_front();
  }
}

void multiplyLater(bool bf16, float (*c)[4], int tiles, const Operand& a, bool rowsA, int offsetA,
                   const uint32_t* words, const Operand& b, bool rowsB, int offsetB, bool add) {
  const int lane = warp::thread() % 32, row = warp::thread() % kThreads / 32 * 16 + lane / 4;
  std::array<std::array<float, 16>, 2> left{};
  if (words != nullptr) {
    for (int i = 0; i < 4; ++i) {
      for (int from = 0; from < 4; ++from) {
        const uint32_t pair = warp::bitsOf(warp::shuffle(warp::ofBits(words[i]), lane / 4 * 4 + from));
        for (int e = 0; e < 2; ++e) {
          const auto bits = static_cast<uint16_t>(pair >> (16 * e));
          left[i % 2][i / 2 * 8 + from * 2 + e] = bf16 ? bfloatToFloat(bits) : halfToFloat(bits);
        }
      }
    }
  }
  const bool memory = words == nullptr;
  mine().open.push_back([=] {
    auto values = left;
    if (memory) {
      for (int r = 0; r < 2; ++r) {
        for (int k = 0; k < 16; ++k) values[r][k] = numberOf(bf16, a, offsetA, rowsA, row + r * 8, k);
      }
    }
    for (int n = 0; n < tiles; ++n) {
      for (int e = 0; e < 4; ++e) {
        float sum = add ? c[n][e] : 0.f;
        for (int k = 0; k < 16; ++k) {
          sum += values[e / 2][k] * numberOf(bf16, b, offsetB, rowsB, n * 8 + lane % 4 * 2 + e % 2, k);
        }
        c[n][e] = sum;
      }
    }
  });
}

}  // namespace seqpar::attn::warpgroup
