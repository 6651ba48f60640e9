// Exchange between this rank's tokens with all heads and all tokens of some ranks with some heads, before and after the
// attention of ULYSSES, USP and MEGATRON_SP.
#pragma once

#include <vector>

#include "attn/problem/operator.h"
#include "seqpar/exchange.h"

namespace seqpar::attn {

class HeadExchange {
 public:
  struct HeadRange {
    int64_t first = 0, count = 0;
  };
  /// Received heads: only the heads of this rank, or all heads, and the rank selects its own.
  enum class Way { kAllToAll, kGather };

  /// `members`: the ranks of the exchange, including this one.
  HeadExchange(const Problem& problem, Exec& exec, std::vector<int> members, Way way = Way::kAllToAll);

  const HeadRange& heads() const { return heads_; }  ///< of this rank
  const HeadRange& kvHeads() const { return kvHeads_; }
  bool copiesKvHeads() const { return copies_; }                    ///< some key heads are on several ranks
  const std::vector<int64_t>& queries() const { return queries_; }  ///< tokens of each member
  const std::vector<int64_t>& keys() const { return keys_; }
  int64_t tokens() const;  ///< of all members
  int64_t kvTokens() const;

  void carve(Arena& arena);

  /// Collective over the members. `lengths` is queries() or keys().
  void toHeads(const Tensor& sequence, const Tensor& head, const std::vector<int64_t>& lengths);
  /// The contributions of several members to a head are added.
  void toSequence(const Tensor& head, const Tensor& sequence, const std::vector<int64_t>& lengths);
  /// toHeads() for one value per query row, without gaps; `sequence` without data: not needed on this rank.
  void toHeads(const Rows& sequence, const Rows& head);
  void toSequence(const Rows& head, const Rows& sequence);

 private:
  seqparHeadShards_t shardsOf(const Tensor& sequence, const std::vector<int64_t>& lengths) const;
  Tensor dense(const Tensor& tensor, seqparDataType_t type) const;
  seqparHeadShards_t shardsOfRows(const Rows& head) const;
  void gather(const Tensor& sequence, const Tensor& head, const std::vector<int64_t>& lengths);

  const Problem& problem_;
  Exec& exec_;
  std::vector<int> members_;
  Way way_;
  HeadRange heads_, kvHeads_;
  bool copies_ = false;
  std::vector<int64_t> queries_, keys_;
  std::vector<int64_t> headsOfMembers_;
  bool evenRows_ = true;   ///< tokens are distributed like heads
  void* stage_ = nullptr;  ///< dense copy of strided caller tensors
  void* whole_ = nullptr;  ///< all heads of all members, for kGather
  Tensor numbers_;
};

}  // namespace seqpar::attn
