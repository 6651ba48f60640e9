// Between this rank's tokens with all heads and all tokens of some ranks with some heads: what ULYSSES, USP and
// MEGATRON_SP do before and after attention.
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
  /// How tokens come: only the heads that a rank has, or all of them, of which it leaves out those of the others.
  enum class Way { kAllToAll, kGather };

  /// `members`: ranks of the communicator that exchange, this one among them.
  HeadExchange(const Problem& problem, Exec& exec, std::vector<int> members, Way way = Way::kAllToAll);

  const HeadRange& heads() const { return heads_; }  ///< of this rank
  const HeadRange& kvHeads() const { return kvHeads_; }
  bool copiesKvHeads() const { return copies_; }                    ///< some are on several ranks
  const std::vector<int64_t>& queries() const { return queries_; }  ///< tokens of each member
  const std::vector<int64_t>& keys() const { return keys_; }
  int64_t tokens() const;  ///< of all members
  int64_t kvTokens() const;

  void carve(Arena& arena);

  /// Collective over the members. `lengths` is queries() or keys().
  void toHeads(const Tensor& sequence, const Tensor& head, const std::vector<int64_t>& lengths);
  /// What several members have of a head is added.
  void toSequence(const Tensor& head, const Tensor& sequence, const std::vector<int64_t>& lengths);
  /// The same for a number a row of the queries, without gaps; `sequence` without data is not wanted by this rank.
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
  bool evenRows_ = true;   ///< tokens are dealt out as heads are
  void* stage_ = nullptr;  ///< what is not dense in the caller's memory, on its way
  void* whole_ = nullptr;  ///< all heads of all members, for kGather
  Tensor numbers_;
};

}  // namespace seqpar::attn
