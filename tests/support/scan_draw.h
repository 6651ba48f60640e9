// Drawing problems of All-Scan at random.
#pragma once

#include <initializer_list>
#include <iterator>
#include <random>
#include <vector>

#include "scan_case.h"

namespace seqpar::test {

inline constexpr Outputs kAllOutputs[] = {Outputs::Both, Outputs::PrefixOnly, Outputs::TotalOnly,
                                          Outputs::PrefixInPlace, Outputs::TotalInPlace};

inline Outputs drawOutputs(std::mt19937_64& random) {
  return kAllOutputs[random() % std::size(kAllOutputs)];
}

template <typename Values>
auto pick(std::mt19937_64& random, const Values& values) {
  return std::data(values)[random() % std::size(values)];
}
template <typename Value>
Value pick(std::mt19937_64& random, std::initializer_list<Value> values) {
  return values.begin()[random() % values.size()];
}

/// The sizes that a shape is drawn from.
struct DrawnSizes {
  std::vector<size_t> heads, dk, dv;
};

/// The parameters common to all operators.
inline ScanSpec drawSpec(std::mt19937_64& random, int size, const DrawnSizes& sizes) {
  ScanSpec spec;
  spec.size = size;
  spec.direction = pick(random, {seqparForward, seqparReverse});
  spec.heads = pick(random, sizes.heads);
  spec.dk = pick(random, sizes.dk);
  spec.dv = pick(random, sizes.dv);
  spec.sequences = pick<size_t>(random, {1, spec.heads});
  spec.initial = random() % 2 == 0;
  return spec;
}

/// SUM, SCALAR or DIAG.
inline ScanSpec drawElementwise(std::mt19937_64& random, int size, Numbers numbers, const DrawnSizes& sizes) {
  ScanSpec spec = drawSpec(random, size, sizes);
  spec.op = pick(random, {seqparScanSum, seqparScanScalar, seqparScanDiag});
  spec.stateType = pick(random, {seqparFloat32, seqparFloat32, seqparFloat16, seqparBfloat16});
  spec.wireType = pick(random, {seqparFloat32, seqparFloat32, seqparFloat16, seqparBfloat16});
  if (spec.op != seqparScanSum) {
    spec.decayForm = pick(random, {seqparDecayLinear, seqparDecayLog, seqparDecayLog2});
    if (numbers == Numbers::Exact && spec.decayForm == seqparDecayLog) spec.decayForm = seqparDecayLog2;
  }
  spec.flags = random() % 3 == 0;
  return spec;
}

inline ScanSpec drawMatrix(std::mt19937_64& random, int size, const DrawnSizes& sizes) {
  ScanSpec spec = drawSpec(random, size, sizes);
  spec.op = seqparScanMatrix;
  spec.stateType = pick(random, {seqparFloat32, seqparFloat16, seqparBfloat16});
  spec.wireType = pick(random, {seqparFloat32, seqparFloat16, seqparBfloat16});
  spec.flags = random() % 2 == 0;
  return spec;
}

}  // namespace seqpar::test
