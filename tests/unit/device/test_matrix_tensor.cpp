// The tensor-core product, with threads that represent warps and an emulated instruction that rounds as tensor cores
// do.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "common/covering.h"
#include "kernels/scan/matrix_tensor.h"
#include "unit/seed.h"

using namespace seqpar;

namespace {

constexpr int kWarp = 32;

/// What the threads of a warp show each other.
struct WarpBoard {
  std::barrier<> meet{kWarp};
  std::uint32_t a[kWarp][4], b[kWarp][2];
  bool votes[kWarp];
};

/// The tensor cores' view of a number.
float cut(std::uint32_t bits) {
  return asFloat(bits & 0xffffe000U);
}

struct ThreadWarp {
  static inline thread_local int self = 0;
  static inline thread_local WarpBoard* board = nullptr;

  static int thread() { return self; }
  static bool any(bool mine) {
    board->votes[self % kWarp] = mine;
    board->meet.arrive_and_wait();
    const bool result = std::any_of(std::begin(board->votes), std::end(board->votes), [](bool vote) { return vote; });
    board->meet.arrive_and_wait();
    return result;
  }
  /// Row i of a is of channels 4 (i % 8) and on, column k of channels k % 4; column j of b of channels 4 j and on; see
  /// PTX ISA, mma.m16n8k8 for tf32.
  static void multiplyTile(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    const int channel = self % kWarp;
    std::copy(std::begin(a), std::end(a), board->a[channel]);
    std::copy(std::begin(b), std::end(b), board->b[channel]);
    board->meet.arrive_and_wait();
    for (int i = 0; i < 4; ++i) {
      const int row = channel / 4 + i / 2 * 8, column = channel % 4 * 2 + i % 2;
      double sum = 0;
      for (int k = 0; k < 8; ++k) {
        const float left = cut(board->a[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]);
        const float right = cut(board->b[column * 4 + k % 4][k / 4]);
        sum += static_cast<double>(left) * right;
      }
      c[i] = static_cast<float>(c[i] + sum);
    }
    board->meet.arrive_and_wait();
  }
};

struct Group {};

struct Problem {
  int dk;
  bool transposed;
  std::vector<float> a, x;  ///< [dk][dk], [dk][16]
};

/// act(i, place of number i of the fragment in [dk][16]), for those of the matrix; `right`: in the right half.
template <class Act>
void eachOfFragment(int number, int dk, int count, bool right, const Act& act) {
  const PanelFragment fragment(number);
  for (int i = 0; i < count; ++i) {
    const int row = fragment.rowOf(i / 2), column = fragment.columnOf(i / 2) + i % 2 + (right ? 8 : 0);
    if (row < dk) act(i, static_cast<std::size_t>(row * 16 + column));
  }
}

struct SplitPanel {
  std::vector<SplitPair> pairs;
  bool needsExact = false;
};

/// Fragments of 4 elements: the left or right half of the panel; of 8: all of it.
template <int count>
SplitPanel splitPanel(const Problem& problem, bool right) {
  SplitPanel panel{std::vector<SplitPair>(pairsOf(problem.dk) * count / 8)};
  for (int fragment = 0; fragment < fragmentsOf(problem.dk); ++fragment) {
    float numbers[count] = {};
    eachOfFragment(fragment, problem.dk, count, right, [&](int i, std::size_t at) { numbers[i] = problem.x[at]; });
    panel.needsExact |= splitFragment(panel.pairs.data(), PanelFragment(fragment), numbers);
  }
  return panel;
}

/// Runs body(thread) on `count` threads that represent warps.
template <class Body>
void runWarps(int count, const Body& body) {
  const auto boards = std::make_unique<WarpBoard[]>(static_cast<std::size_t>(count / kWarp));
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < count; ++thread) {
    threads.emplace_back([&, thread] {
      ThreadWarp::self = thread;
      ThreadWarp::board = &boards[static_cast<std::size_t>(thread / kWarp)];
      body(thread);
    });
  }
}

MatrixView viewOf(const Problem& problem) {
  const auto dk = static_cast<std::size_t>(problem.dk);
  return problem.transposed ? MatrixView{problem.a.data(), 1, dk, problem.dk}
                            : MatrixView{problem.a.data(), dk, 1, problem.dk};
}

template <class Product, int count>
void multiplyExact(const Problem& problem, bool right, std::vector<float>& result) {
  const SplitPanel panel = splitPanel<count>(problem, right);
  runWarps(2 * problem.dk, [&](int thread) {
    Product product;
    product.load(viewOf(problem));
    product.endStep();
    float numbers[count];
    product.multiply(thread, panel.pairs.data(), panel.needsExact, numbers);
    eachOfFragment(thread, problem.dk, count, right, [&](int i, std::size_t at) { result[at] = numbers[i]; });
  });
}

template <int Depth>
void multiplyExact(const Problem& problem, bool byHalves, std::vector<float>& result) {
  const auto run = [&](auto product) {
    using Product = decltype(product);
    if (byHalves) {
      multiplyExact<Product, 4>(problem, false, result);
      multiplyExact<Product, 4>(problem, true, result);
    } else {
      multiplyExact<Product, 8>(problem, false, result);
    }
  };
  if (problem.transposed) {
    run(ExactProduct<ThreadWarp, Depth, Matrices::Columns>());
  } else {
    run(ExactProduct<ThreadWarp, Depth, Matrices::Rows>());
  }
}

enum class How { Any, Exact, ExactByHalves };

/// The product of a panel, [dk][16].
std::vector<float> multiply(const Problem& problem, How how) {
  std::vector<float> result(static_cast<std::size_t>(problem.dk) * 16);
  if (how != How::Any && problem.dk == 64) {
    multiplyExact<64>(problem, how == How::ExactByHalves, result);
  } else if (how != How::Any && problem.dk == 128) {
    multiplyExact<128>(problem, how == How::ExactByHalves, result);
  } else {
    const SplitPanel panel = splitPanel<8>(problem, false);
    runWarps(kTensorThreads, [&](int) {
      TensorProduct<ThreadWarp> product;
      product.load(viewOf(problem));
      product.multiply(Group{}, panel.pairs.data(), panel.needsExact, [&](int fragment, const float(&numbers)[8]) {
        eachOfFragment(fragment, problem.dk, 8, false, [&](int i, std::size_t at) { result[at] = numbers[i]; });
      });
    });
  }
  return result;
}

/// The largest error in units of 2^-24 and of the sum of the terms' sizes.
double errorOf(const Problem& problem, const std::vector<float>& got) {
  const auto dk = static_cast<std::size_t>(problem.dk);
  double worst = 0;
  for (std::size_t row = 0; row < dk; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      double sum = 0, size = 0;
      for (std::size_t k = 0; k < dk; ++k) {
        const double term = static_cast<double>(problem.a[problem.transposed ? k * dk + row : row * dk + k]) *
                            problem.x[k * 16 + column];
        sum += term;
        size += std::abs(term);
      }
      const double error = std::abs(static_cast<double>(got[row * 16 + column]) - sum);
      if (!(error <= 1e30)) return INFINITY;
      worst = std::max(worst, size == 0 ? error : error / (size * 0x1p-24));
    }
  }
  return worst;
}

Problem draw(int dk, bool transposed, std::mt19937& random, bool integers) {
  const auto rows = static_cast<std::size_t>(dk);
  Problem problem{dk, transposed, std::vector<float>(rows * rows), std::vector<float>(rows * 16)};
  for (auto* numbers : {&problem.a, &problem.x}) {
    for (float& number : *numbers) {
      number = integers ? static_cast<float>(random() % 65) - 32 : static_cast<float>(random()) * 0x1p-31F - 1;
    }
  }
  return problem;
}

}  // namespace

TEST_CASE("The product for tensor cores agrees with fp32 for all shapes") {
  const auto [size, dk] =
      GENERATE(table<size_t, int>({{0, 1}, {1, 16}, {2, 17}, {3, 48}, {4, 100}, {5, 128}, {6, 130}}));
  const bool transposed = GENERATE(false, true);
  const How how = GENERATE(How::Any, How::Exact, How::ExactByHalves);
  if (!seqpar::test::covers(size, static_cast<size_t>(how), transposed, 2)) return;
  const seqpar::test::Seed seed;
  CAPTURE(dk, transposed, static_cast<int>(how));
  std::mt19937 random(seed);
  const Problem integers = draw(dk, transposed, random, true);
  CHECK(errorOf(integers, multiply(integers, how)) == 0);
  // Omitted terms: at most 2^-22 of a term. Truncation: two parts at 2^-23. Rounding: a sum in each of dk / 8 steps.
  const Problem reals = draw(dk, transposed, random, false);
  CHECK(errorOf(reals, multiply(reals, how)) <= 4 + 2 * 2 + dk);
}

TEST_CASE("Infinity and NaN propagate through the tensor-core product as defined") {
  // NaN of arithmetic on GPUs has all bits set but the sign.
  const float value = GENERATE(INFINITY, -INFINITY, asFloat(0x7fc00000U), asFloat(0x7fffffffU), asFloat(0xffffffffU),
                               asFloat(0x7f800001U), std::numeric_limits<float>::max());
  const bool inMatrix = GENERATE(false, true);
  const int dk = GENERATE(16, 64, 100);
  const How how = GENERATE(How::Any, How::ExactByHalves);
  CAPTURE(value, inMatrix, dk, static_cast<int>(how));
  std::mt19937 random(3);
  Problem problem = draw(dk, false, random, true);
  for (auto* numbers : {&problem.a, &problem.x}) {
    for (float& number : *numbers) number = std::abs(number) + 1;
  }
  const auto rows = static_cast<std::size_t>(dk);
  problem.a[9 * rows + 7] = 0;
  (inMatrix ? problem.a[5 * rows + 7] : problem.x[7 * 16 + 3]) = value;
  const std::vector<float> got = multiply(problem, how);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      CAPTURE(row, column);
      const bool reaches = inMatrix ? row == 5 : column == 3 && row != 9;
      const float number = got[row * 16 + column];
      CHECK(std::isnan(number) == (reaches && std::isnan(value)));
      if (!std::isnan(number)) CHECK((std::abs(number) > 1e30F) == reaches);
    }
  }
}
