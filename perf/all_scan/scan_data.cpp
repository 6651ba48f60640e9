#include "scan_data.h"

#include <cmath>
#include <cstdint>

namespace seqpar::perf {
namespace {

constexpr uint64_t kForgetEvery = 16;  ///< one in this many factors is 0

/// Hashes three integers to 64 bits (the finalizer of MurmurHash3, on a weighted sum).
uint64_t scatter(uint64_t kind, uint64_t position, uint64_t index) {
  uint64_t bits = (kind + 1) * 0x9e3779b97f4a7c15u + position * 0xbf58476d1ce4e5b9u + index * 0x94d049bb133111ebu;
  bits = (bits ^ (bits >> 33)) * 0xff51afd7ed558ccdu;
  bits = (bits ^ (bits >> 33)) * 0xc4ceb9fe1a85ec53u;
  return bits ^ (bits >> 33);
}

enum Kind : uint64_t { kResult, kLevel, kForget, kShift };

/// x_p: integers from -4 to 4.
std::vector<float> resultsAt(size_t position, size_t count) {
  std::vector<float> x(count);
  if (position == 0) return x;
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(static_cast<int>(scatter(kResult, position, i) % 9) - 4);
  return x;
}

/// A factor from `from` at p to `to` at p+1 is 2^(level(p+1, to) - level(p, from)), so levels cancel in products.
int level(size_t position, size_t row) {
  return static_cast<int>(scatter(kLevel, position, row) & 1);
}

float factor(size_t position, size_t to, size_t from) {
  if (scatter(kForget, position, to) % kForgetEvery == 0) return 0;
  return std::ldexp(1.0f, level(position + 1, to) - level(position, from));
}

}  // namespace

ScanData::ScanData(seqparScanOp_t op, seqparDirection_t direction, Shape shape, int position) : shape_(shape) {
  const auto p = static_cast<size_t>(position);
  prefix_ = resultsAt(p, shape.elements());
  total_ = resultsAt(p + 1, shape.elements());
  state_ = total_;
  if (op == seqparScanMatrix) {
    makeMatrix(direction, p);
  } else {
    makeDiagonal(op, p);
  }
}

void ScanData::makeDiagonal(seqparScanOp_t op, size_t position) {
  if (op != seqparScanSum) transition_.resize(op == seqparScanScalar ? shape_.heads : shape_.rows());
  for (size_t row = 0; row < shape_.rows(); ++row) {
    const size_t index = op == seqparScanScalar ? row / shape_.dk : row;
    const float a = op == seqparScanSum ? 1.0f : factor(position, index, index);
    if (op != seqparScanSum) transition_[index] = a;
    for (size_t i = row * shape_.dv; i < (row + 1) * shape_.dv; ++i) state_[i] -= a * prefix_[i];
  }
}

void ScanData::makeMatrix(seqparDirection_t direction, size_t position) {
  const size_t dk = shape_.dk;
  transition_.resize(shape_.heads * dk * dk);
  for (size_t row = 0; row < shape_.rows(); ++row) {
    const size_t head = row / dk;
    const size_t to = row % dk;
    const size_t from = (to + scatter(kShift, position, head)) % dk;
    const float a = factor(position, row, head * dk + from);
    // In reverse the library applies the transpose.
    const size_t place = direction == seqparForward ? to * dk + from : from * dk + to;
    transition_[head * dk * dk + place] = a;
    const float* const x = &prefix_[(head * dk + from) * shape_.dv];
    for (size_t j = 0; j < shape_.dv; ++j) state_[row * shape_.dv + j] -= a * x[j];
  }
}

}  // namespace seqpar::perf
