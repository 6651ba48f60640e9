// Cost model of softmax attention: the work of the blocks and the bytes of the transfers. Each algorithm's file has its
// formula.
#pragma once

#include "attn/block/traits.h"
#include "attn/problem/algorithm.h"

namespace seqpar::attn {

/// A problem's work and links, the same on all ranks.
class CostModel {
 public:
  explicit CostModel(const Problem& problem)
      : problem_(problem), block_(problem.blockTraits()), ranks_(problem.ranks()) {}

  /// Blocks, their kernels, their rows at edges of the mask, and the sides of squares of as many scores.
  struct Shape {
    double blocks = 1, kernels = 1, edgeRows = 0, sides = 0;
    /// This and `count` other ones.
    Shape with(const Shape& other, double count) const;
  };
  /// Time of blocks with this number of scores per head, forward or backward.
  double blockUs(double scores, bool backward, const Shape& shape) const;
  /// The shape of a rank's queries and another rank's keys, of the rank in the middle: its own, or the previous rank's.
  Shape ownShape() const;
  Shape otherShape() const;
  /// The shape of the middle rank's queries and the keys of all ranks, in ascending order.
  Shape gatheredShape() const;
  /// `shape` for a share of the heads: on GPUs fewer heads have fewer thread blocks next to the longest rows.
  Shape ofHeads(Shape shape, double share) const;
  /// The shape of the queries and keys of some ranks.
  Shape shapeOf(std::span<const TokenRun> queries, std::span<const TokenRun> keys) const;
  /// Time of a transfer to one rank, over the slowest link.
  double sendUs(double bytes) const;
  /// Time in which a rank sends `bytes`, equal parts to each other rank of a group of `size` ranks at distance
  /// `stride`.
  double groupUs(double bytes, int size, int stride) const;
  /// The same in a reduction, in which hosts add the received bytes.
  double reduceUs(double bytes, int size, int stride) const { return groupUs(bytes, size, stride) + copyUs(bytes); }
  /// sendUs() in a ring of such ranks.
  double ringUs(double bytes, int size, int stride) const;
  /// Time of blocks that overlap with transfers of `bytes`, where transfers by kernels take SMs from the blocks, and
  /// copies on hosts the processor.
  double overlapUs(double blocks, double transfers, double bytes) const;
  /// Time in which the processor of a rank on a host copies sent and received bytes; 0 on GPUs.
  double copyUs(double bytes) const;
  /// Time to read and write the bytes of partial results that are added separately; 0 if blocks add their results.
  double memoryUs(double bytes) const;
  /// Bytes of [batch][tokens][heads][dim] in `type`.
  double bytes(double tokens, int64_t heads, int64_t dim, seqparDataType_t type) const;
  double kvBytes(double tokens) const;     ///< keys and values
  double kvSumBytes(double tokens) const;  ///< their gradients, in the wire type
  double kvBytes(double tokens, seqparDataType_t type) const;
  double qBytes(double tokens) const;
  double outBytes(double tokens) const;
  /// Bytes per query that backward needs in addition to q and dOut: lse and delta, or lse and out for blocks that
  /// compute delta themselves.
  double rowBytes(double tokens) const;

  /// Number of scores of one rank's queries and another rank's keys.
  double scores(int queryRank, int keyRank) const { return static_cast<double>(problem_.scores(queryRank, keyRank)); }
  /// Number of scores of a rank's queries and all keys.
  double scoresOfRank(int queryRank) const;
  /// The maximum of scoresOfRank() over the ranks.
  double mostScores() const;
  int ranks() const { return ranks_; }
  const Problem& problem() const { return problem_; }

 private:
  /// sendUs() while `ranks` ranks of a node send to other nodes: links of hosts are measured with one rank of each
  /// node, those of GPUs with all.
  double sendUs(double bytes, int ranks) const;

  const Problem& problem_;
  BlockTraits block_;
  int ranks_;
};

}  // namespace seqpar::attn
