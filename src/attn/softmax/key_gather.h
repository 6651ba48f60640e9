// Gathers the keys that the ranks' queries see, in the order of their positions: MagiAttention's group cast. Where the
// ranks need nearly all keys, or too many ranges of them, all keys are gathered, rank after rank.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "attn/problem/problem.h"
#include "seqpar/exchange.h"

namespace seqpar::attn {

/// Which keys each rank gathers; equal on all ranks.
struct GatheredKeys {
  /// Of each rank: ranges of the tokens of Sharding::allRuns(), in the order of the gathered tensor. Empty: each rank
  /// gathers all keys, rank after rank.
  std::vector<std::vector<TokenRange>> ranges;
  std::vector<TokenRun> all;  ///< Sharding::allRuns()
  /// A rank's gradients of a key are the result of one block call.
  bool once = true;
  int64_t mostReceived = 0;  ///< keys of other ranks that the rank with the most gathers
  double meanReceived = 0;   ///< the mean of the ranks

  int64_t tokensOf(const Problem& problem, int rank) const;
  /// The gathered keys.
  std::vector<TokenRun> runsOf(int rank) const;
};

/// Computed once per score table, and so once per problem.
std::shared_ptr<const GatheredKeys> gatheredKeys(const Problem& problem);

/// The calls for tensors of some of the key heads.
class KeyGather {
 public:
  explicit KeyGather(const Problem& problem);

  const GatheredKeys& keys() const { return *keys_; }
  int64_t tokens() const { return keys_->tokensOf(problem_, problem_.rank()); }
  /// The shard may be at its place in the gathered tensor of one sequence, from token firstOwn() on.
  bool inPlace() const { return keys_->ranges.empty() && problem_.desc.batch == 1; }
  int64_t firstOwn() const { return firstOwn_; }
  /// A token of this rank is seen by no query, so scatter() does not write its gradient.
  bool leavesSome() const { return leavesSome_; }

  /// Prepares calls for tensors of `type` with `inner` elements per token; collective.
  void open(seqparDataType_t type, int64_t inner);
  /// What runs on the GPU next to a transfer.
  enum class Next { Nothing, Computation };
  /// Dense tensors: this rank's shard, and the gathered keys.
  void gather(const Tensor& shard, const Tensor& gathered, Next next, void* stream) const;
  /// The adjoint: sums the copies of each key.
  void scatter(const Tensor& gathered, const Tensor& shard, Next next, void* stream) const;

 private:
  struct Destroy {
    void operator()(seqparRangesPlan_t plan) const { seqparRangesPlanDestroy(plan); }
  };
  using Plan = std::unique_ptr<std::remove_pointer_t<seqparRangesPlan_t>, Destroy>;

  seqparShards_t shardsOf(seqparDataType_t type, int64_t inner, Next next) const;
  seqparRangesPlan_t planFor(const Tensor& tensor, Next next) const;

  const Problem& problem_;
  std::shared_ptr<const GatheredKeys> keys_;
  int64_t firstOwn_ = 0;
  bool leavesSome_ = false;
  std::map<std::tuple<int, int64_t, Next>, Plan> plans_;  ///< by type and elements per token
};

}  // namespace seqpar::attn
