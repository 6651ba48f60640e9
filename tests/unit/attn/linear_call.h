// One rank's call of a plan for linear attention: its part of a whole case, and its results.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/convert.h"
#include "placement.h"
#include "seqpar/attn.h"
#include "support/linear_case.h"

namespace seqpar::attn::test {

using seqpar::test::Bounded;
using seqpar::test::LinearCase;

/// A range of tokens, excluding the last bound, of every batch entry of an array with `row` elements per token.
template <class Number>
std::vector<Number> tokensOf(const LinearCase& c, const std::vector<Number>& numbers, size_t row, size_t begin,
                             size_t end) {
  std::vector<Number> part;
  for (size_t b = 0; b < c.batch; ++b) {
    const auto at = numbers.begin() + static_cast<std::ptrdiff_t>(b * c.tokens * row);
    part.insert(part.end(), at + static_cast<std::ptrdiff_t>(begin * row), at + static_cast<std::ptrdiff_t>(end * row));
  }
  return part;
}

inline Bounded tokensOf(const LinearCase& c, const Bounded& all, size_t row, size_t begin, size_t end) {
  return {tokensOf(c, all.value, row, begin, end), tokensOf(c, all.magnitude, row, begin, end)};
}

/// A caller's tensor [batch][tokens][heads][dim] with room between its rows: tokens before heads, or heads first.
class CallerTensor {
 public:
  CallerTensor(int type, size_t batch, size_t tokens, size_t heads, size_t dim, size_t padding, bool headsFirst)
      : type_(static_cast<seqparDataType_t>(type)), batch_(batch), tokens_(tokens), heads_(heads), dim_(dim) {
    const size_t row = dim + padding;
    tokenStride_ = headsFirst ? row : heads * row;
    headStride_ = headsFirst ? tokens * row : row;
    batchStride_ = heads * tokens * row;
    bytes_.assign((batch * batchStride_ + 1) * sizeOf(type_), std::byte{0xff});  // NaN in all types
  }
  void set(const std::vector<float>& numbers) {
    eachRow([&](size_t row, std::byte* at) { fromFloat(numbers.data() + row * dim_, at, type_, dim_); });
  }
  std::vector<float> get() {
    std::vector<float> numbers(batch_ * tokens_ * heads_ * dim_);
    eachRow([&](size_t row, std::byte* at) { toFloat(at, type_, numbers.data() + row * dim_, dim_); });
    return numbers;
  }
  void place(const Placement* placement, int rank) {
    placed_ = std::make_unique<Placed>(bytes_.data(), bytes_.size(), placement, rank);
  }
  void fetch() const { placed_->fetch(); }
  seqparAttnTensor_t view() {
    const auto as = [](size_t x) { return static_cast<int64_t>(x); };
    if (batch_ * tokens_ == 0) return {};  // has no memory
    return {placed_ == nullptr ? bytes_.data() : placed_->data(), as(batchStride_), as(tokenStride_), as(headStride_)};
  }

 private:
  template <class Body>
  void eachRow(Body body) {
    for (size_t b = 0, row = 0; b < batch_; ++b) {
      for (size_t t = 0; t < tokens_; ++t) {
        for (size_t h = 0; h < heads_; ++h, ++row) {
          body(row, bytes_.data() + (b * batchStride_ + t * tokenStride_ + h * headStride_) * sizeOf(type_));
        }
      }
    }
  }

  seqparDataType_t type_;
  size_t batch_, tokens_, heads_, dim_, batchStride_, tokenStride_, headStride_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<Placed> placed_;
};

struct LinearResult {
  std::vector<float> out, saved, final, dq, dk, dv, dGate, dBeta, dInput, dInitial;
};

struct LinearOptions {
  int algorithm = seqparAttnAuto;
  bool onStream = false, training = true, headsFirst = false;
  bool initialGradient = true;  ///< requested
  bool reserve = false;         ///< forward leaves its states; a forward pass with other inputs runs before backward
  const std::vector<float>* inputGate = nullptr;  ///< [batch][tokens][heads] of the whole, of inputGateType
  int inputGateType = seqparFloat32;
  size_t padding = 0;
  std::string odd;  ///< a tensor with one more element between rows: "q", "gate", "dGate", ...
  int repeats = 1;
  int wireType = seqparFloat32;
  const Placement* placement = nullptr;
};

/// Forward and backward of rank `rank`, which holds lengths[rank] tokens. Returns an error's text, or "".
std::string runLinear(const LinearCase& c, const std::vector<int64_t>& lengths, int rank, seqparComm_t comm,
                      const LinearOptions& options, LinearResult& result);

}  // namespace seqpar::attn::test
