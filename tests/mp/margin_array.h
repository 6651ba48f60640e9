// An array for collectives that detects writes beyond its ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/convert.h"
#include "common/backend.h"

namespace seqpar::test {

/// Elements of a type, not aligned to cache lines, between margins that must not change.
class MarginArray {
 public:
  MarginArray(size_t count, seqparDataType_t type, size_t skew = 0)
      : type_(type),
        count_(count),
        begin_(kMargin + skew % 5 * sizeOf(type)),
        bytes_(begin_ + count * sizeOf(type) + kMargin, kFill) {}

  void* data() { return bytes_.data() + begin_; }
  void set(const std::vector<float>& values) { fromFloat(values.data(), data(), type_, values.size()); }
  std::vector<float> get() {
    std::vector<float> values(count_);
    toFloat(data(), type_, values.data(), count_);
    return values;
  }
  bool marginsIntact() const {
    const auto intact = [](unsigned char byte) { return byte == kFill; };
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(bytes_.begin(), begin, intact) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(count_ * sizeOf(type_)), bytes_.end(), intact);
  }
  size_t count() const { return count_; }

 private:
  static constexpr unsigned char kFill = 0xff;  // NaN in every type
  static constexpr size_t kMargin = 64;
  seqparDataType_t type_;
  size_t count_, begin_;
  Vector<unsigned char> bytes_;
};

}  // namespace seqpar::test
