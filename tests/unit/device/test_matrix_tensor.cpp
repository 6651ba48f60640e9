// The product for tensor cores, by threads that stand for warps and an instruction that rounds as they do.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "scan/matrix_tensor.h"

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
  /// Row i of a is of lanes 4 (i % 8) and on, column k of lanes k % 4; column j of b of lanes 4 j and on; see PTX ISA,
  /// mma.m16n8k8 for tf32.
  static void multiplyTile(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    const int lane = self % kWarp;
    std::copy(std::begin(a), std::end(a), board->a[lane]);
    std::copy(std::begin(b), std::end(b), board->b[lane]);
    board->meet.arrive_and_wait();
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
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

struct Group {
  int self;
  int thread() const { return self; }
  int threads() const { return kTensorThreads; }
};

struct Problem {
  int dk;
  bool transposed;
  std::vector<float> a, x;  ///< [dk][dk], [dk][16]
};

/// The product of a panel, [dk][16], by all threads of a CTA.
template <class Product>
std::vector<float> multiply(const Problem& problem) {
  const auto dk = static_cast<std::size_t>(problem.dk);
  std::vector<SplitNumber> panel(pairsOf(problem.dk));
  bool odd = false;
  for (std::size_t row = 0; row < dk; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      odd |= split(problem.x[row * 16 + column], panel[row * kPairStride + column]);
    }
  }
  const MatrixView a = problem.transposed ? MatrixView{problem.a.data(), 1, dk, problem.dk}
                                          : MatrixView{problem.a.data(), dk, 1, problem.dk};
  std::vector<float> result(dk * 16);
  const auto boards = std::make_unique<WarpBoard[]>(kTensorThreads / kWarp);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kTensorThreads; ++thread) {
    threads.emplace_back([&, thread] {
      ThreadWarp::self = thread;
      ThreadWarp::board = &boards[static_cast<std::size_t>(thread / kWarp)];
      Product product;
      product.load(a);
      product.multiply(Group{thread}, panel.data(), odd, [&](int number, const float(&numbers)[8]) {
        const PanelSlot slot(number);
        for (int n = 0; n < 8; ++n) {
          const auto row = static_cast<std::size_t>(slot.rowOf(n / 2));
          const auto column = static_cast<std::size_t>(slot.columnOf(n / 2) + n % 2);
          if (row < dk) result[row * 16 + column] = numbers[n];
        }
      });
    });
  }
  threads.clear();
  return result;
}

std::vector<float> multiplyAny(const Problem& problem, bool exact) {
  if (exact && problem.dk == 64) return multiply<TensorProduct<ThreadWarp, 64, true>>(problem);
  if (exact && problem.dk == 128) return multiply<TensorProduct<ThreadWarp, 128, true>>(problem);
  return multiply<TensorProduct<ThreadWarp, 128, false>>(problem);
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

TEST_CASE("The product for tensor cores is that of fp32, for all kinds of shapes") {
  const int dk = GENERATE(1, 16, 17, 48, 64, 100, 128, 130, 200);
  const bool transposed = GENERATE(false, true);
  const bool exact = GENERATE(false, true);
  const std::uint32_t seed = std::random_device()();
  CAPTURE(dk, transposed, exact, seed);
  std::mt19937 random(seed);
  const Problem integers = draw(dk, transposed, random, true);
  CHECK(errorOf(integers, multiplyAny(integers, exact)) == 0);
  // Left out: at most 2^-22 of a term. Rounded: two parts at 2^-23, and a sum in each of dk / 8 steps.
  const Problem reals = draw(dk, transposed, random, false);
  CHECK(errorOf(reals, multiplyAny(reals, exact)) <= 4 + 2 * 2 + dk);
}

TEST_CASE("Infinities in a factor of the product for tensor cores stay what they are") {
  const bool inMatrix = GENERATE(false, true);
  const int dk = GENERATE(64, 100);
  std::mt19937 random(3);
  Problem problem = draw(dk, false, random, true);
  for (auto* numbers : {&problem.a, &problem.x}) {
    for (float& number : *numbers) number = std::abs(number) + 1;
  }
  const auto rows = static_cast<std::size_t>(dk);
  (inMatrix ? problem.a[5 * rows + 7] : problem.x[7 * 16 + 3]) = INFINITY;
  const std::vector<float> got = multiplyAny(problem, true);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      CAPTURE(row, column);
      CHECK(std::isinf(got[row * 16 + column]) == (inMatrix ? row == 5 : column == 3));
      CHECK_FALSE(std::isnan(got[row * 16 + column]));
    }
  }
}
