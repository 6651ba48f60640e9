#include "mesh/rows.h"

#include <algorithm>

#include "base/convert.h"
#include "exchange/combine.h"

namespace seqpar {
namespace {

/// Elements from..from+count of the partial results. Ranges are processed in ascending order of `from`, so smaller
/// results overwrite only elements that have been read.
struct Range {
  size_t from, count;
};

void combine(void* data, const void* carry, Range range, PartialTypes types, seqparDataType_t result,
             const float* weights) {
  float sum[kCombined];
  const auto* const mine = static_cast<const std::byte*>(data) + range.from * sizeOf(types.data);
  if (carry == nullptr) {
    setTerm(sum, mine, types.data, range.count);
  } else {
    const auto* const remote = static_cast<const std::byte*>(carry) + range.from * sizeOf(types.wire);
    if (weights == nullptr) {
      setTerm(sum, mine, types.data, range.count);
      addTerm(sum, remote, types.wire, range.count);
    } else {
      std::fill_n(sum, range.count, 0.0f);
      addTerm(sum, mine, types.data, range.count, weights[0]);
      addTerm(sum, remote, types.wire, range.count, weights[1]);
    }
  }
  fromFloat(sum, static_cast<std::byte*>(data) + range.from * sizeOf(result), result, range.count);
}

/// combine() in ranges that fit its scratch.
void combineAll(void* data, const void* carry, Range all, PartialTypes types, seqparDataType_t result,
                const float* weights) {
  for (size_t done = 0; done < all.count; done += kCombined) {
    combine(data, carry, {all.from + done, std::min(kCombined, all.count - done)}, types, result, weights);
  }
}

}  // namespace

void mergeOutputs(void* o, float* lse, const void* carry, const float* carryLse, const OutputShape& shape,
                  PartialTypes types, seqparDataType_t result) {
  if (carry == nullptr) return addSums(o, nullptr, shape.elements(), types, result);
  for (size_t token = 0; token < shape.tokens; ++token) {
    for (size_t head = 0; head < shape.heads; ++head) {
      const size_t row = head * shape.tokens + token;
      const float parts[] = {lse[row], carryLse[row]};
      float weights[2];
      lse[row] = mergeLse(parts, weights, 2);
      combineAll(o, carry, {(token * shape.heads + head) * shape.dim, shape.dim}, types, result, weights);
    }
  }
}

void addSums(void* data, const void* carry, size_t count, PartialTypes types, seqparDataType_t result) {
  if (carry == nullptr && types.data == result) return;
  combineAll(data, carry, {0, count}, types, result, nullptr);
}

}  // namespace seqpar
