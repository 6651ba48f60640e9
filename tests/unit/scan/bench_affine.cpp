// Times the hop beside memcpy, in one thread. Prints; judges nothing.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "affine_case.h"
#include "base/simd.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// Least seconds of one call, of at least 3 calls and 0.1 s.
template <class Call>
double leastSeconds(const Call& call) {
  using Clock = std::chrono::steady_clock;
  double least = 1e9;
  double spent = 0;
  for (int i = 0; i < 3 || spent < 0.1; ++i) {
    const auto begin = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    least = std::min(least, seconds);
    spent += seconds;
  }
  return least;
}

enum class Outputs { Wire, TotalWire, PrefixWire, All };

struct Figures {
  double seconds;
  size_t bytes;  // read and written
};

Figures timeHop(seqparScanOp_t op, seqparDataType_t state, seqparDataType_t wire, size_t heads, size_t dk, size_t dv,
                Outputs outputs) {
  std::mt19937 random(1);
  Case c(op, heads, dk, dv, state, wire, small(random), [] { return 0.5F; });
  size_t streams = 0;
  if (outputs == Outputs::Wire || outputs == Outputs::TotalWire) c.problem.prefix = nullptr;
  if (outputs == Outputs::Wire || outputs == Outputs::PrefixWire) c.problem.total = nullptr;
  streams = 1 + (c.problem.prefix != nullptr) + (c.problem.total != nullptr);
  const Tensor x(generate(c.problem.elements(), small(random)), wire);
  Tensor sent(c.problem.elements(), wire);
  const auto map = c.affine();
  const Block block = map->split(1).front();
  const double seconds = leastSeconds([&] { map->hop(block, x.values(), sent.data()); });
  return {seconds, c.problem.elements() * (streams * sizeOf(state) + 2 * sizeOf(wire))};
}

// Copies half of `bytes`, so that as much is read and written.
double memcpySeconds(size_t bytes) {
  Tensor from(bytes / 8, seqparFloat32);
  Tensor to(bytes / 8, seqparFloat32);
  return leastSeconds([&] { std::memcpy(to.data(), from.data(), bytes / 2); });
}

const char* opName(seqparScanOp_t op) {
  const char* names[] = {"sum", "scalar", "diag", "matrix"};
  return names[op];
}

void elementwise() {
  std::printf("%-7s %-5s %-5s %-12s %10s %10s %10s %7s\n", "op", "state", "wire", "outputs", "KiB", "GB/s", "memcpy",
              "ratio");
  const char* outputNames[] = {"wire", "total+wire", "prefix+wire", "all"};
  for (const seqparScanOp_t op : {seqparScanSum, seqparScanScalar, seqparScanDiag}) {
    for (const auto& [state, wire] : {std::pair{seqparFloat32, seqparFloat32},
                                      {seqparFloat32, seqparBfloat16},
                                      {seqparBfloat16, seqparBfloat16},
                                      {seqparFloat16, seqparFloat16}}) {
      for (const Outputs outputs : {Outputs::TotalWire, Outputs::All}) {
        for (const size_t kib : {64, 1024, 8192, 65536}) {
          const size_t elements = kib * 1024 / sizeOf(state);
          const Figures hop = timeHop(op, state, wire, elements / (64 * 128), 64, 128, outputs);
          const double copy = memcpySeconds(hop.bytes);
          const double scale = static_cast<double>(hop.bytes) * 1e-9;
          std::printf("%-7s %-5s %-5s %-12s %10zu %10.1f %10.1f %7.2f\n", opName(op), typeName(state), typeName(wire),
                      outputNames[static_cast<int>(outputs)], kib, scale / hop.seconds, scale / copy,
                      copy / hop.seconds);
        }
      }
    }
  }
}

void matrix() {
  for (const seqparDataType_t type : kTypes) {
    const size_t heads = 32;
    const size_t d = 128;
    const Figures hop = timeHop(seqparScanMatrix, type, type, heads, d, d, Outputs::All);
    std::printf("matrix  %-5s %zu heads of %zu x %zu x %zu: %.1f us, %.1f GFLOP/s\n", typeName(type), heads, d, d, d,
                hop.seconds * 1e6, 2.0 * static_cast<double>(heads * d * d * d) * 1e-9 / hop.seconds);
  }
}

}  // namespace

int main() {
  std::printf("kernels: %s\n", isaName(bestIsa()));
  elementwise();
  matrix();
}
