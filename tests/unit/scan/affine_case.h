// Inputs for the tests of the affine map, and a reference in fp64 that knows nothing of blocks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "base/convert.h"
#include "scan/affine/affine.h"
#include "scan_case.h"

namespace seqpar::test {

inline constexpr seqparDataType_t kTypes[] = {seqparFloat32, seqparFloat16, seqparBfloat16};
inline constexpr seqparScanOp_t kOps[] = {seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix};
inline constexpr seqparDirection_t kDirections[] = {seqparForward, seqparReverse};

/// Numbers in memory of a type, at an address that is a multiple of 64 plus one element where `skewed`.
class Tensor {
 public:
  Tensor() = default;
  Tensor(size_t count, seqparDataType_t type, bool skewed = false)
      : bytes_(count * sizeOf(type) + 128), count_(count), type_(type), skewed_(skewed) {
    for (std::byte& byte : bytes_) byte = std::byte{0xa5};
  }
  Tensor(const std::vector<float>& values, seqparDataType_t type, bool skewed = false)
      : Tensor(values.size(), type, skewed) {
    fromFloat(values.data(), data(), type, count_);
  }

  void* data() {
    const size_t address = reinterpret_cast<size_t>(bytes_.data());
    return bytes_.data() + (64 - address % 64) % 64 + (skewed_ ? sizeOf(type_) : 0);
  }
  const void* data() const { return const_cast<Tensor*>(this)->data(); }
  Values values() const { return {data(), type_}; }
  seqparDataType_t type() const { return type_; }

  std::vector<float> floats() const {
    std::vector<float> all(count_);
    toFloat(data(), type_, all.data(), count_);
    return all;
  }
  /// The raw bytes, for bitwise comparisons.
  std::vector<std::byte> bits() const {
    const auto* first = static_cast<const std::byte*>(data());
    return {first, first + count_ * sizeOf(type_)};
  }

 private:
  std::vector<std::byte> bytes_;
  size_t count_ = 0;
  seqparDataType_t type_ = seqparFloat32;
  bool skewed_ = false;
};

using Generator = std::function<float()>;

inline std::vector<float> generate(size_t count, const Generator& next) {
  std::vector<float> all(count);
  for (float& value : all) value = next();
  return all;
}

inline Generator normal(std::mt19937& random) {
  return [&random] { return std::normal_distribution<float>()(random); };
}

/// Integers in [-4, 4]: with power-of-two factors, every sum is exact in fp32.
inline Generator small(std::mt19937& random) {
  return [&random] { return static_cast<float>(std::uniform_int_distribution<int>(-4, 4)(random)); };
}

/// 0 or a power of two, of either sign.
inline Generator powers(std::mt19937& random) {
  return [&random] {
    const float choices[] = {0.0F, 0.5F, 1.0F, 2.0F, -1.0F, -0.5F};
    return choices[std::uniform_int_distribution<size_t>(0, std::size(choices) - 1)(random)];
  };
}

/// One rank's part, with the memory that it points to. `problem` may be changed before affine() is called.
struct Case {
  ScanProblem problem;
  std::vector<float> transition;
  Tensor state, prefix, total;

  /// Linear decays; no flags; both outputs requested.
  Case(seqparScanOp_t op, size_t heads, size_t dk, size_t dv, seqparDataType_t stateType, seqparDataType_t wireType,
       const Generator& states, const Generator& factors, bool skewed = false)
      : transition(generate(transitionElements(op, heads, dk), factors)),
        state(generate(heads * dk * dv, states), stateType, skewed),
        prefix(heads * dk * dv, stateType, skewed),
        total(heads * dk * dv, stateType, skewed) {
    problem.op = op;
    problem.heads = heads;
    problem.dk = dk;
    problem.dv = dv;
    problem.stateType = stateType;
    problem.wireType = wireType;
    problem.headFlags.assign(heads, 0);
    problem.state = state.data();
    problem.transition = op == seqparScanSum ? nullptr : transition.data();
    problem.prefix = prefix.data();
    problem.total = total.data();
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  std::unique_ptr<Affine> affine() const { return makeAffine(problem); }

  /// A block of `full` ([heads][dk][dv]) as a dense message of `type`.
  std::vector<std::byte> pack(Block block, const Tensor& full, seqparDataType_t type) const {
    ScanProblem copy = problem;
    copy.state = full.data();
    copy.stateType = full.type();
    copy.wireType = type;
    copy.first = false;
    const auto packer = makeAffine(copy);
    std::vector<std::byte> dense(packer->stateElements(block) * sizeOf(type));
    packer->packState(block, dense.data());
    return dense;
  }

  /// The inverse of pack().
  void unpack(Block block, const std::vector<std::byte>& dense, Tensor& full) const {
    ScanProblem copy = problem;
    copy.headFlags.assign(problem.heads, 0);
    copy.stateType = full.type();
    copy.state = full.data();
    copy.prefix = full.data();
    copy.total = nullptr;
    makeAffine(copy)->hop(block, {dense.data(), full.type()}, nullptr);
  }

  /// Computes one hop in `parts` blocks, with x of type `xType`. Reassembles the wire data; it is written `skew` bytes
  /// after a multiple of 64.
  Tensor hop(const Tensor& x, seqparDataType_t xType, size_t parts, Store store = Store::Cached, size_t skew = 0) {
    Tensor sent(problem.elements(), problem.wireType);
    const auto map = affine();
    for (const Block block : map->split(parts)) {
      const std::vector<std::byte> from = pack(block, x, xType);
      const size_t bytes = map->stateElements(block) * sizeOf(problem.wireType);
      std::vector<std::byte> memory(bytes + 64 + skew);
      std::byte* const begin = memory.data() + (64 - reinterpret_cast<size_t>(memory.data()) % 64) % 64 + skew;
      map->hop(block, {from.data(), xType}, {begin, store});
      unpack(block, {begin, begin + bytes}, sent);
    }
    return sent;
  }

  unsigned flags(size_t head) const { return problem.headFlags[head]; }
};

/// A x + S in fp64, and the sum of the magnitudes of each element's terms.
struct Reference {
  std::vector<double> prefix, total, magnitude;

  Reference(const Case& c, const std::vector<float>& x) {
    const ScanProblem& p = c.problem;
    const std::vector<float> s = c.state.floats();
    prefix.resize(p.elements());
    total.resize(p.elements());
    magnitude.resize(p.elements());
    for (size_t h = 0; h < p.heads; ++h) {
      const bool reset = (c.flags(h) & SEQPAR_SCAN_RESET_IN) != 0;
      const bool forgets = reset || (c.flags(h) & SEQPAR_SCAN_CUT) != 0;
      for (size_t i = 0; i < p.dk; ++i) {
        for (size_t j = 0; j < p.dv; ++j) {
          const size_t e = (h * p.dk + i) * p.dv + j;
          prefix[e] = reset ? 0.0 : x[e];
          total[e] = s[e];
          magnitude[e] = std::abs(s[e]);
          if (forgets) continue;
          if (p.op != seqparScanMatrix) {
            add(e, factor(c, h, i) * x[e]);
          } else {
            for (size_t k = 0; k < p.dk; ++k) {
              const size_t a = p.direction == seqparForward ? i * p.dk + k : k * p.dk + i;
              add(e, static_cast<double>(c.transition[h * p.dk * p.dk + a]) * x[(h * p.dk + k) * p.dv + j]);
            }
          }
        }
      }
    }
  }

  static double factor(const Case& c, size_t head, size_t row) {
    const ScanProblem& p = c.problem;
    if (p.op == seqparScanSum) return 1.0;
    const double given = c.transition[p.op == seqparScanScalar ? head : head * p.dk + row];
    if (p.decayForm == seqparDecayLog) return std::exp(given);
    if (p.decayForm == seqparDecayLog2) return std::exp2(given);
    return given;
  }

 private:
  void add(size_t element, double term) {
    if (term == 0.0) return;
    total[element] += term;
    magnitude[element] += std::abs(term);
  }
};

/// Largest error in units of what fp32 arithmetic with `terms` terms and one rounding to `type` may leave; 1 is all.
inline double worstError(const std::vector<float>& got, const std::vector<double>& expected,
                         const std::vector<double>& magnitude, size_t terms, seqparDataType_t type) {
  const double rounding = type == seqparFloat32 ? 0x1p-24 : type == seqparFloat16 ? 0x1p-11 : 0x1p-8;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    // Each term has a product, a sum and a rounded factor (by up to 2 ulps if it was exponentiated).
    const double arithmetic = magnitude[i] * 0x1p-24 * static_cast<double>(terms + 4);
    const double bound = arithmetic + (std::abs(expected[i]) + arithmetic) * rounding + 0x1p-25;
    const double error = std::abs(got[i] - expected[i]) / bound;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace seqpar::test
