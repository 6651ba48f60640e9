// Caches of checked and prepared calls of exchange.h that move data from one buffer to one buffer.
#pragma once

#include <memory>

#include "api/known_calls.h"
#include "api/shards.h"
#include "exchange/backend.h"

namespace seqpar {

/// A shape without arrays and the function that it was passed to, a literal.
template <typename Given>
struct ExchangeKey {
  const char* call;
  Given given;
};

inline bool sameShape(const seqparShards_t& a, const seqparShards_t& b) noexcept {
  return a.inner == b.inner && a.tokens == b.tokens && a.outer == b.outer && a.dataType == b.dataType &&
         a.tokensOfMembers == b.tokensOfMembers && a.group == b.group && a.groupSize == b.groupSize;
}

inline bool sameShape(const seqparHeadShards_t& a, const seqparHeadShards_t& b) noexcept {
  return a.tokens == b.tokens && a.heads == b.heads && a.headDim == b.headDim && a.queryHeads == b.queryHeads &&
         a.batch == b.batch && a.dataType == b.dataType && a.tokensOfMembers == b.tokensOfMembers &&
         a.group == b.group && a.groupSize == b.groupSize;
}

/// A call of all ranks of a communicator of host memory.
template <typename Given, typename Shape>
struct ExchangeCall {
  using Key = ExchangeKey<Given>;
  Key key;
  Checked<Shape> checked;
  const CallValues* values = nullptr;
  std::shared_ptr<PreparedExchange> prepared;
  uint64_t id = 0;

  static bool matches(const Key& a, const Key& b) noexcept { return a.call == b.call && sameShape(a.given, b.given); }
};
using ShardsCall = ExchangeCall<seqparShards_t, Shards>;
using HeadsCall = ExchangeCall<seqparHeadShards_t, HeadShards>;

}  // namespace seqpar
