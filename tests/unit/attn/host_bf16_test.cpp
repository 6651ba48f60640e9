// The host block kernel on bf16 inputs, forward and backward, with all kernels that this processor supports.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "amx_emulated.h"
#include "attn/block/host.h"
#include "base/convert.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

/// All kernels that this processor supports, and AMX with emulated tile registers.
std::vector<Bf16Kernels> testedKernels() {
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

Problem draw(std::mt19937& random) {
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

bool sees(const Rectangle& r, int64_t row, int64_t column) {
  const int64_t i = row - r.row, j = column - r.column;
  return i >= 0 && i < r.rows && j >= 0 && j < r.columns && j - i >= r.lower && j - i <= r.upper;
}

struct Results {
  std::vector<float> out, lse;
};

struct Inputs {
  Values q, k, v;
};

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

/// `type`: of results, which the block rounds.
Results compute(const Problem& p, Inputs& in, const Bf16Kernels* kernels, int threads, const float* sinks = nullptr,
                seqparDataType_t type = seqparFloat32) {
  BlockWithMemory made(p, kernels, threads);
  HostBlock& block = made.block;
  block.expect(p.rectangles, p.rows, p.columns, {.accumulated = true, .once = true, .sinks = sinks != nullptr});
  const auto& s = p.shape;
  const auto view = [](Values& values, int64_t tokens, int64_t heads, int64_t dim) {
    return denseTensor(values.bits.data(), seqparBfloat16, 1, tokens, heads, dim);
  };
  Results results{std::vector<float>(static_cast<size_t>(p.rows * s.heads * s.valueDim)),
                  std::vector<float>(static_cast<size_t>(p.rows * s.heads))};
  const Partial partial{denseTensor(results.out.data(), seqparFloat32, 1, p.rows, s.heads, s.valueDim),
                        denseRows(results.lse.data(), 1, s.heads, p.rows)};
  std::vector<uint16_t> rounded(results.out.size());
  Tensor out = partial.out;
  if (type == seqparBfloat16) out = denseTensor(rounded.data(), type, 1, p.rows, s.heads, s.valueDim);
  const auto attention = block.accumulate(partial, out, {});
  attention->add({view(in.q, p.rows, s.heads, s.headDim), view(in.k, p.columns, s.kvHeads, s.headDim),
                  view(in.v, p.columns, s.kvHeads, s.valueDim)},
                 p.rectangles);
  attention->finish(sinks, out, partial.lse);
  if (type == seqparBfloat16) seqpar::toFloat(rounded.data(), type, results.out.data(), rounded.size());
  return results;
}

/// Compares a row with fp64. Weights p are rounded to bf16, so a sum of terms p v is off by at most 2^-8 of the sum of
/// p |v|; the polynomial of 2^x and the fp32 sums add less than 2^-14 of it.
void checkRow(const Problem& p, const Inputs& in, const Results& results, int64_t row, int64_t h) {
  const auto& s = p.shape;
  const int64_t kvHead = h / s.group;
  std::vector<double> out(static_cast<size_t>(s.valueDim)), sizes = out;
  double sum = 0;
  for (int64_t column = 0; column < p.columns; ++column) {
    if (!sees(p.rectangles[0], row, column) && !sees(p.rectangles[1], row, column)) continue;
    double score = 0;
    for (int64_t i = 0; i < s.headDim; ++i) {
      score += double{in.q.exact[static_cast<size_t>((row * s.heads + h) * s.headDim + i)]} *
               in.k.exact[static_cast<size_t>((column * s.kvHeads + kvHead) * s.headDim + i)];
    }
    score *= s.scale;
    if (s.softcap != 0) score = s.softcap * std::tanh(score / s.softcap);
    const double weight = std::exp(score);
    sum += weight;
    for (int64_t i = 0; i < s.valueDim; ++i) {
      const double value = in.v.exact[static_cast<size_t>((column * s.kvHeads + kvHead) * s.valueDim + i)];
      out[static_cast<size_t>(i)] += weight * value;
      sizes[static_cast<size_t>(i)] += weight * std::abs(value);
    }
  }
  CAPTURE(row, h);
  const float lse = results.lse[static_cast<size_t>(h * p.rows + row)];
  if (sum == 0) {
    REQUIRE(lse == -std::numeric_limits<float>::infinity());
    return;
  }
  REQUIRE(std::abs(lse - std::log(sum)) < 2e-5);
  for (int64_t i = 0; i < s.valueDim; ++i) {
    const float found = results.out[static_cast<size_t>((row * s.heads + h) * s.valueDim + i)];
    const auto at = static_cast<size_t>(i);
    REQUIRE(std::abs(found - out[at] / sum) <= (0x1p-8 + 0x1p-14) * sizes[at] / sum + 1e-30);
  }
}

TEST_CASE("bf16 attention agrees with fp64 with all kernels, on any number of threads") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 12; ++round) {
    const Problem p = draw(random);
    const auto& s = p.shape;
    CAPTURE(round, p.rows, p.columns, s.heads, s.kvHeads, s.headDim, s.valueDim, s.softcap);
    const auto values = [&](int64_t count) { return Values(static_cast<size_t>(count), random); };
    Inputs in{values(p.rows * s.heads * s.headDim), values(p.columns * s.kvHeads * s.headDim),
              values(p.columns * s.kvHeads * s.valueDim)};
    for (const auto& kernels : testedKernels()) {
      CAPTURE(kernels.name);
      const auto results = compute(p, in, &kernels, 1);
      for (int64_t row = 0; row < p.rows; ++row)
        checkRow(p, in, results, row, static_cast<int64_t>(random()) % s.heads);
      const auto threaded = compute(p, in, &kernels, 3);
      CHECK(results.out == threaded.out);
      CHECK(results.lse == threaded.lse);
    }
  }
}

TEST_CASE("bf16 attention: threads change no bits of windows that are longer than a chunk of keys") {
  std::mt19937 random(1);
  Problem p;
  p.shape.type = seqparBfloat16;
  p.shape.headDim = p.shape.valueDim = 32;
  p.rows = p.columns = 4500;
  p.rectangles = {{0, p.rows, 0, p.columns}, {0, 0, 0, 0}};
  p.rectangles[0].lower = -2300;
  p.rectangles[0].upper = 0;
  const auto values = [&] { return Values(static_cast<size_t>(p.rows * 32), random); };
  Inputs in{values(), values(), values()};
  for (const auto& kernels : testedKernels()) {
    CAPTURE(kernels.name);
    const auto results = compute(p, in, &kernels, 1), threaded = compute(p, in, &kernels, 3);
    CHECK(results.out == threaded.out);
    CHECK(results.lse == threaded.lse);
  }
}

TEST_CASE("bf16 results of rows that are merged once are rounded sums, and 0 without a key") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 8; ++round) {
    Problem p = draw(random);
    const auto& s = p.shape;
    const int64_t border = static_cast<int64_t>(random() % static_cast<unsigned>(p.rows + 1));
    p.rectangles[0].rows = p.rectangles[1].row = border;
    p.rectangles[1].rows = p.rows - border;
    const bool sinks = random() % 2 == 0;
    CAPTURE(round, p.rows, p.columns, border, sinks, s.heads, s.headDim, s.valueDim);
    const auto values = [&](int64_t count) { return Values(static_cast<size_t>(count), random); };
    Inputs in{values(p.rows * s.heads * s.headDim), values(p.columns * s.kvHeads * s.headDim),
              values(p.columns * s.kvHeads * s.valueDim)};
    std::vector<float> sink(static_cast<size_t>(s.heads), 0.5f);
    for (const auto& kernels : testedKernels()) {
      CAPTURE(kernels.name);
      const Results expected = compute(p, in, &kernels, 1, sinks ? sink.data() : nullptr);
      const Results found = compute(p, in, &kernels, 3, sinks ? sink.data() : nullptr, seqparBfloat16);
      CHECK(found.lse == expected.lse);
      std::vector<uint16_t> rounded(expected.out.size());
      seqpar::fromFloat(expected.out.data(), rounded.data(), seqparBfloat16, rounded.size());
      std::vector<float> exact(rounded.size());
      seqpar::toFloat(rounded.data(), seqparBfloat16, exact.data(), exact.size());
      CHECK(found.out == exact);
    }
  }
}

struct Gradients {
  std::vector<float> dq, dk, dv;
  bool operator==(const Gradients&) const = default;
};

/// The sums of a backward pass whose lse and delta are given.
Gradients computeGradients(const Problem& p, Inputs& in, Values& dOut, std::vector<float>& lse,
                           std::vector<float>& delta, const Bf16Kernels* kernels, int threads) {
  BlockWithMemory made(p, kernels, threads);
  HostBlock& block = made.block;
  const auto& s = p.shape;
  const auto view = [](auto& values, seqparDataType_t type, int64_t tokens, int64_t heads, int64_t dim) {
    return denseTensor(values.data(), type, 1, tokens, heads, dim);
  };
  Gradients g{std::vector<float>(in.q.bits.size()), std::vector<float>(in.k.bits.size()),
              std::vector<float>(in.v.bits.size())};
  const BlockGradientInputs inputs{view(in.q.bits, seqparBfloat16, p.rows, s.heads, s.headDim),
                                   view(in.k.bits, seqparBfloat16, p.columns, s.kvHeads, s.headDim),
                                   view(in.v.bits, seqparBfloat16, p.columns, s.kvHeads, s.valueDim),
                                   view(dOut.bits, seqparBfloat16, p.rows, s.heads, s.valueDim),
                                   denseRows(lse.data(), 1, s.heads, p.rows),
                                   denseRows(delta.data(), 1, s.heads, p.rows),
                                   {}};
  block.backward(inputs, p.rectangles,
                 BlockGradients{view(g.dq, seqparFloat32, p.rows, s.heads, s.headDim),
                                view(g.dk, seqparFloat32, p.columns, s.kvHeads, s.headDim),
                                view(g.dv, seqparFloat32, p.columns, s.kvHeads, s.valueDim)});
  return g;
}

/// Expected sums, and bounds of their errors: weights p and gradients of scores are rounded to bf16, which changes each
/// term by at most 2^-8 of its size; the polynomial of 2^x and the fp32 sums change a term's factors by less than 2^-14
/// of their terms' sizes.
struct ExpectedGradients {
  explicit ExpectedGradients(const Inputs& in)
      : dq(in.q.bits.size()), dk(in.k.bits.size()), dv(in.v.bits.size()), dqBound(dq), dkBound(dk), dvBound(dv) {}
  std::vector<double> dq, dk, dv, dqBound, dkBound, dvBound;

  void addRow(const Problem& p, const Inputs& in, const Values& dOut, int64_t row, int64_t h, float& lse,
              float& delta) {
    const auto& s = p.shape;
    const auto dim = static_cast<size_t>(s.headDim), width = static_cast<size_t>(s.valueDim);
    const auto token = [](int64_t t, int64_t heads, int64_t head) { return static_cast<size_t>(t * heads + head); };
    const size_t q = token(row, s.heads, h) * dim, o = token(row, s.heads, h) * width;
    struct Key {
      size_t k, v;
      double p, product = 0, size = 0;
    };
    std::vector<Key> keys;
    double sum = 0, exactDelta = 0;
    for (int64_t column = 0; column < p.columns; ++column) {
      if (!sees(p.rectangles[0], row, column) && !sees(p.rectangles[1], row, column)) continue;
      const size_t at = token(column, s.kvHeads, h / s.group);
      Key key{at * dim, at * width, 0};
      for (size_t i = 0; i < dim; ++i) key.p += double{in.q.exact[q + i]} * in.k.exact[key.k + i];
      key.p = std::exp(key.p * s.scale);
      for (size_t i = 0; i < width; ++i) {
        const double term = double{in.v.exact[key.v + i]} * dOut.exact[o + i];
        key.product += term;
        key.size += std::abs(term);
      }
      sum += key.p;
      exactDelta += key.p * key.product;
      keys.push_back(key);
    }
    lse = static_cast<float>(std::log(sum));  // -inf without a key
    exactDelta = keys.empty() ? 0 : exactDelta / sum;
    delta = static_cast<float>(exactDelta);
    for (const Key& key : keys) {
      const double weight = key.p / sum, gradient = weight * (key.product - exactDelta);
      const double error = 0x1p-8 * std::abs(gradient) + 0x1p-14 * weight * (key.size + std::abs(exactDelta));
      for (size_t i = 0; i < width; ++i) {
        dv[key.v + i] += weight * dOut.exact[o + i];
        dvBound[key.v + i] += (0x1p-8 + 0x1p-14) * weight * std::abs(dOut.exact[o + i]);
      }
      for (size_t i = 0; i < dim; ++i) {
        dq[q + i] += gradient * s.scale * in.k.exact[key.k + i];
        dqBound[q + i] += error * s.scale * std::abs(in.k.exact[key.k + i]);
        dk[key.k + i] += gradient * s.scale * in.q.exact[q + i];
        dkBound[key.k + i] += error * s.scale * std::abs(in.q.exact[q + i]);
      }
    }
  }
};

void checkWithin(const std::vector<float>& got, const std::vector<double>& expected, const std::vector<double>& bound) {
  for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - expected[i]) <= bound[i] + 1e-30);
}

TEST_CASE("gradients of bf16 attention agree with fp64 with all kernels, on any number of threads") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 6; ++round) {
    Problem p = draw(random);
    auto& s = p.shape;
    s.softcap = 0;  // with a softcap, gradients are computed in fp32
    CAPTURE(round, p.rows, p.columns, s.heads, s.kvHeads, s.headDim, s.valueDim);
    const auto values = [&](int64_t count) { return Values(static_cast<size_t>(count), random); };
    Inputs in{values(p.rows * s.heads * s.headDim), values(p.columns * s.kvHeads * s.headDim),
              values(p.columns * s.kvHeads * s.valueDim)};
    Values dOut = values(p.rows * s.heads * s.valueDim);
    std::vector<float> lse(static_cast<size_t>(p.rows * s.heads)), delta = lse;
    ExpectedGradients expected(in);
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t row = 0; row < p.rows; ++row) {
        const auto at = static_cast<size_t>(h * p.rows + row);
        expected.addRow(p, in, dOut, row, h, lse[at], delta[at]);
      }
    }
    for (const auto& kernels : testedKernels()) {
      CAPTURE(kernels.name);
      const auto got = computeGradients(p, in, dOut, lse, delta, &kernels, 1);
      checkWithin(got.dq, expected.dq, expected.dqBound);
      checkWithin(got.dk, expected.dk, expected.dkBound);
      checkWithin(got.dv, expected.dv, expected.dvBound);
      CHECK(got == computeGradients(p, in, dOut, lse, delta, &kernels, 7));
    }
  }
}

TEST_CASE("bf16 attention: NaN in hidden keys has no effect, and infinite scores follow the definition") {
  std::mt19937 random(1);
  Problem p;
  p.shape.type = seqparBfloat16;
  p.shape.headDim = p.shape.valueDim = 32;
  p.rows = 20;
  p.columns = 90;
  p.rectangles = {{0, 20, 0, 45}, {0, 20, 45, 0}};
  Inputs in{Values(20 * 32, random), Values(90 * 32, random), Values(90 * 32, random)};
  for (const auto& kernels : testedKernels()) {
    CAPTURE(kernels.name);
    Inputs poisoned = in;
    for (size_t i = size_t{45} * 32; i < size_t{90} * 32; ++i) poisoned.k.exact[i] = poisoned.v.exact[i] = NAN;
    poisoned.k.round();
    poisoned.v.round();
    CHECK(compute(p, in, &kernels, 1).out == compute(p, poisoned, &kernels, 1).out);
    Problem window = p;  // row i sees keys i + 13 to i + 43
    window.rectangles = {{0, 1, 0, 90, 13, 43}, {1, 19, 1, 89, 13, 43}};
    window.rows = 20;
    poisoned = in;
    for (size_t i = 0; i < size_t{13} * 32; ++i) poisoned.k.exact[i] = poisoned.v.exact[i] = NAN;
    for (size_t i = size_t{63} * 32; i < size_t{90} * 32; ++i) poisoned.k.exact[i] = poisoned.v.exact[i] = NAN;
    poisoned.k.round();
    poisoned.v.round();
    CHECK(compute(window, in, &kernels, 1).out == compute(window, poisoned, &kernels, 1).out);
    for (const float score : {-INFINITY, INFINITY, NAN}) {
      Problem one = p;
      one.rows = one.columns = 1;
      one.rectangles = {{0, 1, 0, 1}};
      Inputs single{Values(32, random), Values(32, random), Values(32, random)};
      std::fill(single.q.exact.begin(), single.q.exact.end(), 0.0f);
      single.q.exact[0] = score;
      single.k.exact[0] = 1;
      single.q.round();
      single.k.round();
      const auto results = compute(one, single, &kernels, 1);
      if (score < 0) {
        CHECK(results.lse[0] == -INFINITY);
        CHECK(results.out == std::vector<float>(32, 0.0f));
      } else {
        CHECK(std::isnan(results.out[0]));
      }
    }
  }
}

TEST_CASE("bf16 attention: in gradients, NaN reaches neither queries from hidden keys nor hidden keys from queries") {
  std::mt19937 random(1);
  Problem p;
  p.shape.type = seqparBfloat16;
  p.shape.headDim = p.shape.valueDim = 32;
  p.rows = 20;
  p.columns = 90;
  p.rectangles = {{0, 1, 0, 90, 13, 43}, {1, 19, 1, 89, 13, 43}};  // row i sees keys i + 13 to i + 43
  const auto hidden = [](size_t i) { return i < size_t{13} * 32 || i >= size_t{63} * 32; };
  Inputs in{Values(20 * 32, random), Values(90 * 32, random), Values(90 * 32, random)};
  Values dOut(20 * 32, random);
  std::vector<float> lse(20, 1.0f), delta(20, 0.5f);
  for (const auto& kernels : testedKernels()) {
    CAPTURE(kernels.name);
    const Gradients expected = computeGradients(p, in, dOut, lse, delta, &kernels, 1);
    Inputs keys = in;
    for (size_t i = 0; i < keys.k.exact.size(); ++i) {
      if (hidden(i)) keys.k.exact[i] = keys.v.exact[i] = NAN;
    }
    keys.k.round();
    keys.v.round();
    CHECK(computeGradients(p, keys, dOut, lse, delta, &kernels, 1) == expected);
    Inputs queries = in;
    std::fill(queries.q.exact.begin(), queries.q.exact.end(), NAN);
    queries.q.round();
    Values of = dOut;
    std::fill(of.exact.begin(), of.exact.end(), NAN);
    of.round();
    const Gradients found = computeGradients(p, queries, of, lse, delta, &kernels, 1);
    for (size_t i = 0; i < found.dk.size(); ++i) {
      if (hidden(i)) REQUIRE((found.dk[i] == 0 && found.dv[i] == 0));
    }
  }
}

}  // namespace
