// What the algorithms of softmax attention should cost, by the work of their blocks and the bytes of their transfers.
#pragma once

#include <vector>

#include "attn/problem/algorithm.h"

namespace seqpar::attn {

/// A problem's work and links, the same on all ranks.
class CostModel {
 public:
  CostModel(const Problem& problem, double flops) : problem_(problem), flops_(flops), ranks_(problem.ranks()) {}

  /// Time of so many scores, all heads, forward or backward.
  double blockUs(double scores, bool backward) const;
  /// Time of a transfer of so many bytes to one rank.
  double sendUs(double bytes) const;
  /// Time of blocks beside transfers that no copy engine does: between GPUs of a node kernels take SMs for them.
  double besideUs(double blocks, double transfers) const;
  /// Time in which a GPU reads and writes so many bytes, as it does to add partial results. 0 on hosts, where blocks
  /// add what they compute.
  double memoryUs(double bytes) const;
  /// Bytes of so many tokens of `heads` heads of length `dim`.
  double bytes(double tokens, int64_t heads, int64_t dim, seqparDataType_t type) const;
  double kvBytes(double tokens) const;     ///< keys and values
  double kvSumBytes(double tokens) const;  ///< their gradients, in the wire's type
  double kvBytes(double tokens, seqparDataType_t type) const;
  double qBytes(double tokens) const;
  double outBytes(double tokens) const;
  /// What backward needs of a query beside the query and the gradient of its output: two numbers, or a number and the
  /// output, for blocks that make delta themselves.
  double rowBytes(double tokens) const;

  /// Scores of a rank's queries and another's keys.
  double scores(int queryRank, int keyRank) const { return static_cast<double>(problem_.scores(queryRank, keyRank)); }
  /// Of a rank's queries and all keys.
  double scoresOfRank(int queryRank) const;
  /// The most of any rank.
  double mostScores() const;
  int ranks() const { return ranks_; }
  const Problem& problem() const { return problem_; }

 private:
  const Problem& problem_;
  double flops_;
  int ranks_;
};

Estimate estimateLocal(const Problem& problem, double flops);
Estimate estimateRing(const Problem& problem, double flops);
Estimate estimateRingPassQ(const Problem& problem, double flops);
Estimate estimateBurst(const Problem& problem, double flops);
Estimate estimateDoubleRing(const Problem& problem, double flops);
Estimate estimateAllGatherKv(const Problem& problem, double flops);
Estimate estimateUlysses(const Problem& problem, double flops);
Estimate estimateUsp(const Problem& problem, double flops);
Estimate estimateMesh(const Problem& problem, double flops);
Estimate estimateAttention2d(const Problem& problem, double flops);
Estimate estimateDistAttn(const Problem& problem, double flops);
Estimate estimateStarTrail(const Problem& problem, double flops);
Estimate estimateRingSelfAttention(const Problem& problem, double flops);
Estimate estimateMegatronSp(const Problem& problem, double flops);

}  // namespace seqpar::attn
