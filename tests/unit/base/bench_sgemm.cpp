// Prints the rate of matrix products of the shapes that scans and attention have, for every instruction set.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "base/sgemm_kernels.h"

using namespace seqpar;

namespace {

struct Shape {
  const char* what;
  size_t m, n, k;
  bool transposedA, transposedB;
};

constexpr Shape kShapes[] = {
    {"MATRIX scan, dk 64", 64, 64, 64, false, false},
    {"MATRIX scan, dk 128", 128, 128, 128, false, false},
    {"MATRIX scan, dk 128, reverse", 128, 128, 128, true, false},
    {"MATRIX scan, dk 256", 256, 256, 256, false, false},
    {"MATRIX scan, 16 columns of it", 128, 16, 128, false, false},
    {"linear attention, scores", 64, 64, 128, false, true},
    {"linear attention, scores by v", 64, 128, 64, false, false},
    {"linear attention, state", 128, 128, 64, true, false},
    {"linear attention, 16 tokens", 16, 16, 128, false, true},
    {"softmax attention, scores", 64, 256, 128, false, true},
    {"softmax attention, weights by v", 64, 128, 256, false, false},
    {"softmax attention, dv", 256, 128, 64, true, false},
};

double secondsOf(SgemmKernel kernel, const Shape& shape, const std::vector<float>& a, const std::vector<float>& b,
                 std::vector<float>& c, int repeats) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) {
    kernel(shape.m, shape.n, shape.k, {a.data(), shape.transposedA ? shape.m : shape.k, shape.transposedA},
           {b.data(), shape.transposedB ? shape.k : shape.n, shape.transposedB}, i % 8 != 0, c.data(), shape.n);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeats;
}

}  // namespace

int main() {
  constexpr int kTries = 9;
  constexpr double kOperations = 4e8;  // of a try
  std::printf("%-34s", "GFLOP/s, best of 9");
  for (const Isa isa : supportedIsas()) std::printf("%10s", isaName(isa));
  std::printf("\n");
  for (const auto& shape : kShapes) {
    const double operations = 2.0 * static_cast<double>(shape.m * shape.n * shape.k);
    const std::vector<float> a(shape.m * shape.k, 0.5f), b(shape.k * shape.n, 0.25f);
    std::vector<float> c(shape.m * shape.n);
    std::printf("%-34s", shape.what);
    for (const Isa isa : supportedIsas()) {
      double least = 1e9;
      for (int i = 0; i < kTries; ++i) {
        least =
            std::min(least, secondsOf(sgemmKernel(isa), shape, a, b, c, static_cast<int>(kOperations / operations)));
      }
      std::printf("%10.1f", operations / least * 1e-9);
    }
    std::printf("\n");
  }
}
