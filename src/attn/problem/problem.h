// What a plan computes: seqparAttnDesc_t, checked and completed, with its own copies of what pointers led to.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/block/rectangles.h"
#include "attn/exec/tensor.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn {

/// Which rank holds which tokens: a layout, or contiguous shards of given lengths.
class Sharding {
 public:
  Sharding() = default;
  /// Contiguous shards of these lengths.
  explicit Sharding(std::vector<int64_t> lengths);
  /// A layout, with a copy of its cuSeqlens. Throws Error in the name of `call` for one that is none.
  Sharding(const char* call, const seqparLayout_t& layout);
  /// Groups of the ranks of `of` in the place of ranks: each has its members' shards, one behind the other.
  Sharding(const Sharding& of, std::span<const std::vector<int>> groups);

  int ranks() const { return static_cast<int>(lengths_.size()); }
  int64_t tokens() const;  ///< of all ranks
  int64_t tokensOf(int rank) const { return lengths_[static_cast<size_t>(rank)]; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t longest() const;                       ///< tokens of the rank that has the most
  std::vector<TokenRun> runsOf(int rank) const;  ///< in the order in which they lie on the rank
  /// The tokens of all ranks, rank after rank.
  std::vector<TokenRun> allRuns() const;

  /// As given; with lengths of the caller `ranks` is 0. cuSeqlens is NULL.
  seqparLayout_t layout() const;
  int kind() const { return layout_.kind; }
  /// Of the layout.
  const std::vector<int64_t>& packing() const { return cuSeqlens_; }
  bool contiguous() const { return layout_.kind == seqparContiguous && layout_.sequences == 0 && layout_.slices == 1; }

 private:
  seqparLayout_t whole() const;  ///< with cuSeqlens

  seqparLayout_t layout_ = SEQPAR_LAYOUT_INITIALIZER;
  std::vector<int64_t> cuSeqlens_;           ///< of the layout
  std::vector<int64_t> lengths_;             ///< [ranks]
  std::vector<std::vector<TokenRun>> runs_;  ///< [ranks] of groups; else empty
  bool byLengths_ = true;
};

/// What a rank's queries see of a rank's keys.
struct Sight {
  int64_t scores = -1;
  TokenRange queries, keys;  ///< those that see, and are seen, lie in these
};

/// What each rank's queries see of each rank's keys; counted when asked for.
class ScoreTable {
 public:
  ScoreTable(const Sharding& queries, const Sharding& keys, const Visibility& visibility);
  const Sight& at(int queryRank, int keyRank);

 private:
  std::vector<std::vector<TokenRun>> queries_, keys_;
  std::vector<int64_t> cuSeqlens_;
  Visibility visibility_;
  std::vector<Sight> sights_;
};

struct Problem {
  /// kvHeads, valueDim, kvTokens and scale are filled in; pointers are NULL: see below.
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  seqparComm_t comm = nullptr;
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;  ///< with comm NULL: one rank
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;
  std::vector<int64_t> cuSeqlens;  ///< empty: the tokens are one sequence
  bool layoutGiven = false;        ///< by the caller; false: the algorithm brings its own
  bool kvLayoutGiven = false;
  std::vector<int64_t> tokensOfRanks;  ///< empty: not given
  std::shared_ptr<ScoreTable> table;   ///< of the shards; set with them
  Sharding queries, keys;              ///< set once the algorithm is chosen; the same object's copy without kvTokens
  // Of a part of a problem, as USP has one: shards are those of some ranks, and heads are some of all.
  std::vector<int> members;  ///< ranks of comm, by what rank() counts; empty: all
  int64_t groupOfWhole = 0;  ///< group() where heads are not a multiple of kvHeads; 0: they are
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
  /// Forward may leave what it has exchanged in the caller's memory, for backward.
  bool reserves() const { return desc.reserve != 0 && training(); }
  seqparDataType_t type() const { return static_cast<seqparDataType_t>(desc.dataType); }
  seqparDataType_t wireType() const { return static_cast<seqparDataType_t>(desc.wireType); }
  int64_t group() const { return groupOfWhole != 0 ? groupOfWhole : desc.heads / desc.kvHeads; }
  /// The rank of comm that is called `rank` here.
  int member(int rank) const { return members.empty() ? rank : members[static_cast<size_t>(rank)]; }
  int64_t tokens() const { return queries.tokensOf(rank()); }  ///< of this rank
  int64_t kvTokens() const { return keys.tokensOf(rank()); }
  Visibility visibility() const;
  /// Scores of a rank's queries and another's keys.
  int64_t scores(int queryRank, int keyRank) const { return table->at(queryRank, keyRank).scores; }
  /// The part of each rank's keys, or with `ofQueries` queries, that attention between ranks is about. Shards of many
  /// runs, which have parts of nearly everything, count whole.
  std::vector<TokenRange> seenByOthers(bool ofQueries) const;
  /// The rectangles of a rank's queries and another's keys.
  std::vector<Rectangle> rectangles(int queryRank, int keyRank) const;
};

/// Checks everything that needs no algorithm; throws Error in the name of `call`.
Problem readProblem(const char* call, const seqparAttnDesc_t* given, seqparComm_t comm);

}  // namespace seqpar::attn
