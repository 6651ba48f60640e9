// What the runners of exchange cases share: one case on one rank.
#pragma once

#include <algorithm>
#include <vector>

#include "base/convert.h"
#include "common/backend.h"
#include "exchange_case.h"
#include "margin_array.h"
#include "seqpar/exchange.h"

namespace seqpar::test {

class ExchangeRunner {
 public:
  ExchangeRunner(const ExchangeCase& given, seqparComm_t comm, int rank, void* stream)
      : c_(given),
        comm_(comm),
        stream_(stream),
        self_(static_cast<size_t>(std::find(c_.ranks.begin(), c_.ranks.end(), rank) - c_.ranks.begin())) {}

 protected:
  void done(seqparResult_t result) {
    expectSuccess(result, nameOf(c_.call), comm_);
    backend()->synchronize(stream_);
  }

  void compare(const char* what, MarginArray& got, const std::vector<float>& expected) {
    expect(got.marginsIntact(), what, ": written beyond its ends");
    const auto values = got.get();
    expect(values.size() == expected.size(), what, ": the test expects ", expected.size(), " of ", values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      expect(values[i] == expected[i], what, "[", i, "] of ", values.size(), " is ", values[i], ", expected ",
             expected[i]);
    }
  }

  template <typename Shape>
  void setMembers(Shape& shape) {
    shape.dataType = c_.type;
    shape.tokensOfMembers = c_.equalTokens ? nullptr : c_.tokens.data();
    shape.tokens = c_.equalTokens ? c_.tokens[0] : -1;
    shape.group = c_.group.empty() ? nullptr : c_.group.data();
    shape.groupSize = static_cast<int>(c_.group.size());
  }
  seqparShards_t shards() {
    seqparShards_t shape = SEQPAR_SHARDS_INITIALIZER;
    shape.outer = c_.outer;
    shape.inner = c_.inner;
    setMembers(shape);
    return shape;
  }

  /// Tokens [first, first + count) of the sum of the whole arrays [outer][total][inner] with these keys.
  std::vector<float> slice(int64_t first, int64_t count, const std::vector<std::uint64_t>& keys) {
    std::vector<float> values;
    for (int64_t outer = 0; outer < c_.outer; ++outer) {
      for (int64_t i = 0; i < count * c_.inner; ++i) {
        const auto index = static_cast<size_t>((outer * c_.total() + first) * c_.inner + i);
        float sum = 0;
        for (const auto key : keys) sum += valueOf(key, index);
        values.push_back(sum);
      }
    }
    return values;
  }
  std::vector<std::uint64_t> allKeys() {
    std::vector<std::uint64_t> keys;
    for (size_t member = 0; member < c_.members(); ++member) keys.push_back(c_.keyOf(member));
    return keys;
  }

  size_t indexOf(int64_t outer, int64_t token, int64_t i) const {
    return static_cast<size_t>((outer * c_.total() + token) * c_.inner + i);
  }

  const ExchangeCase& c_;
  seqparComm_t comm_;
  void* stream_;
  size_t self_;
};

/// A case of seqparGatherRanges() and seqparScatterRanges().
void runRanges(const ExchangeCase& c, seqparComm_t comm, int rank, void* stream);

}  // namespace seqpar::test
