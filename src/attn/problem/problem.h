// The input of a plan: seqparAttnDesc_t, checked and completed, with copies of the arrays behind its pointers.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/block/rectangles.h"
#include "attn/block/slices.h"
#include "attn/block/traits.h"
#include "attn/exec/tensor.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn {

/// Which rank holds which tokens: a layout, or contiguous shards of given lengths.
class Sharding {
 public:
  Sharding() = default;
  /// Contiguous shards of these lengths.
  explicit Sharding(std::vector<int64_t> lengths);
  /// A layout, with a copy of its cuSeqlens. Throws Error in the name of `call` if it is not valid.
  Sharding(const char* call, const seqparLayout_t& layout);
  /// Groups of the ranks of `of` instead of single ranks: each group holds its members' shards, in order.
  Sharding(const Sharding& of, std::span<const std::vector<int>> groups);

  int ranks() const { return static_cast<int>(lengths_.size()); }
  int64_t tokens() const;  ///< of all ranks
  int64_t tokensOf(int rank) const { return lengths_[static_cast<size_t>(rank)]; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t longest() const;                       ///< tokens of the rank with the most
  std::vector<TokenRun> runsOf(int rank) const;  ///< in the rank's memory order
  /// The tokens of all ranks, rank after rank.
  std::vector<TokenRun> allRuns() const;

  /// The caller's layout; with lengths from the caller, `ranks` is 0. cuSeqlens is NULL. Valid as long as this.
  seqparLayout_t layout() const;
  int kind() const { return layout_.kind; }
  /// The layout's cuSeqlens.
  const std::vector<int64_t>& packing() const { return cuSeqlens_; }
  /// Bounds and owners of pieces, for the comparison between ranks; empty for other kinds.
  const std::vector<int64_t>& pieces() const { return pieces_; }
  bool operator==(const Sharding& other) const;
  bool contiguous() const { return layout_.kind == seqparContiguous && layout_.sequences == 0 && layout_.slices == 1; }

 private:
  seqparLayout_t whole() const;  ///< with cuSeqlens

  seqparLayout_t layout_ = SEQPAR_LAYOUT_INITIALIZER;
  std::vector<int64_t> cuSeqlens_;           ///< of the layout
  std::vector<int64_t> pieces_;              ///< bounds and owners
  std::vector<int> pieceOwners_;             ///< of the layout
  std::vector<int64_t> lengths_;             ///< [ranks]
  std::vector<std::vector<TokenRun>> runs_;  ///< [ranks] of groups; else empty
  bool byLengths_ = true;
};

struct GatheredKeys;

/// The scores between each rank's queries and each rank's keys, and what follows from them; computed on demand.
class ScoreTable {
 public:
  ScoreTable(const Sharding& queries, const Sharding& keys, const Visibility& visibility);
  int64_t scores(int queryRank, int keyRank);
  /// Problem::seenByOthers().
  const std::vector<std::vector<TokenRange>>& seenByOthers(bool ofQueries);
  /// gatheredKeys() on hosts and on GPUs; null until it has been called.
  std::shared_ptr<const GatheredKeys>& gathered(bool onDevice) { return gathered_[onDevice ? 1 : 0]; }
  /// True for a table of equal arguments.
  bool isOf(const Sharding& queries, const Sharding& keys, const Visibility& visibility) const;

 private:
  Sharding queryShards_, keyShards_;
  std::vector<std::vector<TokenRun>> queries_, keys_;
  std::vector<int64_t> cuSeqlens_;
  Visibility visibility_;
  std::vector<int64_t> scores_;  ///< [query ranks][key ranks]; -1: not counted yet
  std::array<std::vector<std::vector<TokenRange>>, 2> seen_;
  std::array<std::shared_ptr<const GatheredKeys>, 2> gathered_;
};

/// A new table, or inside the scope of a SharedScoreTables, that scope's table of equal arguments.
std::shared_ptr<ScoreTable> makeScoreTable(const Sharding& queries, const Sharding& keys, const Visibility& visibility);

/// While the outermost one exists, the plans that its thread creates share tables: for a thread that creates the plans
/// of many ranks one after the other, since P plans of P ranks have P^3 scores. No two threads may use such plans at
/// the same time.
class SharedScoreTables {
 public:
  SharedScoreTables();
  SharedScoreTables(const SharedScoreTables&) = delete;
  SharedScoreTables& operator=(const SharedScoreTables&) = delete;
  ~SharedScoreTables();

 private:
  friend std::shared_ptr<ScoreTable> makeScoreTable(const Sharding&, const Sharding&, const Visibility&);
  std::vector<std::shared_ptr<ScoreTable>> tables_;
};

struct Problem {
  /// kvHeads, valueDim, kvTokens and scale are filled in; pointers are NULL: the members below hold copies.
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  seqparComm_t comm = nullptr;
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;  ///< with comm NULL: one rank
  seqparPlanInfo_t plan = SEQPAR_PLAN_INFO_INITIALIZER;
  seqparLinkInfo_t nodeLink = SEQPAR_LINK_INFO_INITIALIZER;  ///< between ranks of a node; `info` has the slowest link
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;
  std::vector<int64_t> cuSeqlens;           ///< empty: all tokens are one sequence
  std::shared_ptr<const SliceMask> slices;  ///< null: no slices
  std::vector<int64_t> sliceNumbers;        ///< of the given slices
  bool hasLayout = false;                   ///< by the caller; false: the algorithm chooses
  bool hasKvLayout = false;
  std::vector<int64_t> tokensOfRanks;  ///< empty: not given
  std::shared_ptr<ScoreTable> table;   ///< of the shards; set with them
  Sharding queries, keys;              ///< set once the algorithm is chosen; copies of each other without kvTokens
  // For a part of a problem, as in USP: shards are those of some ranks, and heads are a subset.
  std::vector<int> members;  ///< ranks of comm by rank() of this part; empty: all
  int64_t groupOfWhole = 0;  ///< group() if heads are not a multiple of kvHeads; 0: they are
  int64_t phase = 0;         ///< BlockShape's

  int rank() const { return info.rank; }
  int ranks() const { return info.nranks; }
  bool softmax() const { return desc.family == seqparAttnSoftmax; }
  bool onDevice() const { return info.device != SEQPAR_HOST_DEVICE; }
  bool crossAttention() const { return desc.kvTokens != 0; }
  bool packed() const { return !cuSeqlens.empty(); }
  bool windowed() const {
    return desc.windowLeft != SEQPAR_ATTN_NO_WINDOW ||
           (desc.mask == seqparAttnFull && desc.windowRight != SEQPAR_ATTN_NO_WINDOW);
  }
  bool training() const { return desc.training != 0; }
  BlockTraits blockTraits() const { return attn::blockTraits(info, plan, type(), kernel); }
  /// Forward may leave exchanged data in the caller's memory, for backward.
  bool reserves() const { return desc.reserve != 0 && training(); }
  seqparDataType_t type() const { return static_cast<seqparDataType_t>(desc.dataType); }
  seqparDataType_t wireType() const { return static_cast<seqparDataType_t>(desc.wireType); }
  int64_t group() const { return groupOfWhole != 0 ? groupOfWhole : desc.heads / desc.kvHeads; }
  /// The rank in comm of this part's `rank`.
  int member(int rank) const { return members.empty() ? rank : members[static_cast<size_t>(rank)]; }
  int64_t tokens() const { return queries.tokensOf(rank()); }  ///< of this rank
  int64_t kvTokens() const { return keys.tokensOf(rank()); }
  Visibility visibility() const;
  /// Number of scores between a rank's queries and another rank's keys.
  int64_t scores(int queryRank, int keyRank) const { return table->scores(queryRank, keyRank); }
  /// For each rank, the keys (with `ofQueries`: the queries) that attention between ranks needs, as few ascending
  /// ranges of its shard, which include some that are not needed. One range is sent without a copy.
  const std::vector<std::vector<TokenRange>>& seenByOthers(bool ofQueries) const;
  /// The rectangles of scores between a rank's queries and another rank's keys.
  std::vector<Rectangle> rectangles(int queryRank, int keyRank) const;
};

/// Checks everything that does not depend on the algorithm; throws Error in the name of `call`.
Problem readProblem(const char* call, const seqparAttnDesc_t* given, seqparComm_t comm);

}  // namespace seqpar::attn
