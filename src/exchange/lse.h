// Merging partial softmax results: reduce-scatter of (out, lse).
#pragma once

#include <cstddef>

#include "exchange/shards.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Partial results of attention: out [outer][tokens][heads][elements of type], lse [outer][heads][tokens] fp32.
struct LseShards {
  Shards out;  ///< inner: bytes of all heads of a token
  std::size_t heads = 0;
  seqparDataType_t type = seqparFloat32;
};

/// Every member's lse (send buffer 0) for this member's tokens, as consecutive [outer][heads][tokens] arrays (receive
/// buffer 0).
Route lseRoute(const LseShards& shards, std::size_t member);

/// One member's part of merging all members' results for the whole sequence; each member gets its shard: lse' = log sum
/// exp(lse), out' = sum exp(lse - lse') out, in fp32 and in the order of the members. The outputs of a member with lse
/// -inf are ignored; if all lse are -inf, out' is 0 and lse' is -inf.
struct LseReduction {
  LseShards shards;
  std::size_t member = 0;
  const std::byte* out = nullptr;
  const float* lse = nullptr;
  std::byte* outShard = nullptr;
  float* lseShard = nullptr;
};
void reduceLseOnHost(Mailbox& mail, const LseReduction& given);

}  // namespace seqpar
