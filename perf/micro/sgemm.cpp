// micro_sgemm: the host matrix product in the shapes of scans and attention, for every instruction set.
#include "base/sgemm_kernels.h"

#include <memory>
#include <vector>

#include "part.h"

namespace seqpar::perf {
namespace {

struct Shape {
  const char* what;
  size_t m, n, k;
  bool transposedA, transposedB;

  double operations() const { return 2.0 * static_cast<double>(m * n * k); }
};

constexpr Shape kShapes[] = {
    {"matrix scan", 64, 64, 64, false, false},
    {"matrix scan", 128, 128, 128, false, false},
    {"matrix scan, reverse", 128, 128, 128, true, false},
    {"matrix scan", 256, 256, 256, false, false},
    {"matrix scan, columns", 128, 16, 128, false, false},
    {"linear, scores", 64, 64, 128, false, true},
    {"linear, scores by v", 64, 128, 64, false, false},
    {"linear, state", 128, 128, 64, true, false},
    {"linear, 16 tokens", 16, 16, 128, false, true},
    {"softmax, scores", 64, 256, 128, false, true},
    {"softmax, weights by v", 64, 128, 256, false, false},
    {"softmax, dv", 256, 128, 64, true, false},
};
constexpr double kOperations = 2e7;  ///< per iteration
constexpr int kSum = 8;              ///< products accumulated before c is reset

/// The operands are chosen so that every sum is exact.
struct Product {
  explicit Product(const Shape& given)
      : shape(given), a(shape.m * shape.k, 0.5F), b(shape.k * shape.n, 0.25F), c(shape.m * shape.n) {}

  void run(const SgemmKernel& kernel, int count) {
    for (int i = 0; i < count; ++i) {
      kernel.multiply(shape.m, shape.n, shape.k, {a.data(), shape.transposedA ? shape.m : shape.k, shape.transposedA},
                      {b.data(), shape.transposedB ? shape.k : shape.n, shape.transposedB}, i % kSum != 0, c.data(),
                      shape.n, nullptr);
    }
  }
  size_t wrong() const {
    size_t count = 0;
    for (const float value : c) count += value == kSum * 0.125F * static_cast<float>(shape.k) ? 0 : 1;
    return count;
  }

  Shape shape;
  std::vector<float> a, b, c;
};

Case caseOf(const Shape& shape, Isa isa) {
  const auto product = std::make_shared<Product>(shape);
  const int count = kSum * std::max(1, static_cast<int>(kOperations / shape.operations() / kSum));
  Case entry;
  entry.row.bytes = (product->a.size() + product->b.size() + product->c.size()) * sizeof(float);
  entry.row.count = product->c.size();
  const auto text = [](size_t number) { return std::to_string(number); };
  entry.row.labels = {shape.what, text(shape.m) + "x" + text(shape.n) + "x" + text(shape.k), isaName(isa)};
  entry.outOfPlace = partWork([=] { product->run(sgemmKernel(isa), count); }, count);
  entry.outOfPlace.wrong = [product] { return product->wrong(); };
  return entry;
}

void runAll(Session& session) {
  for (const Shape& shape : kShapes) {
    std::vector<Case> cases;
    for (const Isa isa : supportedIsas()) cases.push_back(caseOf(shape, isa));
    for (Row& row : session.measure(cases)) {
      row.extras = {shape.operations() / row.outOfPlace.us * 1e-3};
      session.report.row(row);
    }
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  return runProgram(
      partProgram("micro_sgemm",
                  "The host matrix product, one thread per rank, operands in cache. A size counts both operands and\n"
                  "the product.",
                  {{"what", "", 21, InPlot::Panel}, {"m x n x k", "", 12, InPlot::Panel}, {"for", "", 9}},
                  {{"rate", "(GFLOP/s)", 10}}, false, runAll),
      argc, argv);
}
