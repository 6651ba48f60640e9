// The host block kernel on several threads, for any number of processors.
#include "attn/block/host.h"
#include "unit/seed.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

struct Results {
  std::vector<float> out, lse, dq, dk, dv;
};

/// Attention of `rows` queries to `columns` keys with a band, forward and backward, on `threads` threads.
Results compute(int threads, int64_t rows, int64_t columns, const std::vector<float>& numbers,
                const std::vector<Rectangle>& rectangles) {
  HostExec exec(threads, nullptr);
  BlockShape shape;
  shape.heads = 6;
  shape.kvHeads = 2;
  shape.group = 3;
  shape.headDim = shape.valueDim = 8;
  shape.scale = 0.3f;
  HostBlock block(exec, shape);
  Arena counting;
  block.carve(counting);
  const auto memory = exec.allocate(counting.used(), "a test");
  Arena arena(memory.get());
  block.carve(arena);
  auto inputs = numbers;
  const auto view = [&](size_t part, int64_t tokens, int64_t heads) {
    return denseTensor(inputs.data() + part * numbers.size() / 4, seqparFloat32, 1, tokens, heads, 8);
  };
  const Tensor q = view(0, rows, 6), k = view(1, columns, 2), v = view(2, columns, 2), dOut = view(3, rows, 6);
  const auto count = [](int64_t n) { return static_cast<size_t>(n); };
  Results r{std::vector<float>(count(rows * 48)), std::vector<float>(count(rows * 6)),
            std::vector<float>(count(rows * 48)), std::vector<float>(count(columns * 16)),
            std::vector<float>(count(columns * 16))};
  std::vector<float> delta(r.lse.size());
  const auto sums = [&](std::vector<float>& to, int64_t tokens, int64_t heads) {
    return denseTensor(to.data(), seqparFloat32, 1, tokens, heads, 8);
  };
  const Partial partial{sums(r.out, rows, 6), denseRows(r.lse.data(), 1, 6, rows)};
  const auto attention = block.accumulate(partial, {}, {});
  attention->add({q, k, v}, rectangles);
  attention->finish(nullptr, partial.out, {});
  const Rows deltas = denseRows(delta.data(), 1, 6, rows);
  block.delta(partial.out, dOut, deltas);
  block.backward({q, k, v, dOut, partial.lse, deltas, partial.out}, rectangles,
                 BlockGradients{sums(r.dq, rows, 6), sums(r.dk, columns, 2), sums(r.dv, columns, 2)});
  return r;
}

TEST_CASE("the host block kernel gives the same bits on any number of threads") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 300, kColumns = 700;
  std::vector<float> numbers(4 * kColumns * 48);
  for (auto& number : numbers) number = normal(random);
  const std::vector<Rectangle> rectangles{{0, 200, 0, 400}, {100, 200, 400, 300, -20, 100}};
  const auto one = compute(1, kRows, kColumns, numbers, rectangles);
  for (const int threads : {2, 3, 5}) {
    CAPTURE(threads);
    const auto many = compute(threads, kRows, kColumns, numbers, rectangles);
    CHECK(one.out == many.out);
    CHECK(one.lse == many.lse);
    CHECK(one.dq == many.dq);
    CHECK(one.dk == many.dk);
    CHECK(one.dv == many.dv);
  }
}

TEST_CASE("scores of infinity and NaN agree with the definition") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto run = [](float score) {  // one query, one key, of 8 elements; only the first is nonzero
    std::vector<float> numbers(4 * 48, 0.0f);
    for (size_t h = 0; h < 6; ++h) numbers[h * 8] = score;
    numbers[48] = numbers[56] = 1;
    for (size_t i = 0; i < 16; ++i) numbers[96 + i] = 2;
    return compute(1, 1, 1, numbers, {{0, 1, 0, 1}});
  };
  const auto nothing = run(-kInf);
  CHECK(nothing.out == std::vector<float>(48, 0.0f));
  CHECK(nothing.lse == std::vector<float>(6, -kInf));
  CHECK(nothing.dq == std::vector<float>(48, 0.0f));
  CHECK(std::isnan(run(NAN).out[0]));
  CHECK(std::isnan(run(kInf).out[0]));
}

}  // namespace
