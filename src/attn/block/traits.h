// Properties of the block kernel that algorithms and the cost model depend on.
#pragma once

#include "seqpar/attn_plan.h"
#include "seqpar/plan.h"
#include "seqpar/seqpar.h"

namespace seqpar::attn {

/// The times that the cost model assumes for one pass of a block.
struct PassTraits {
  double flops = 0;       ///< floating-point operations per second
  double startUs = 0;     ///< of a kernel, whatever its number of scores
  double edgeScores = 0;  ///< time of a row at the edge of a mask in addition to its scores, in scores
  double sideScores = 0;  ///< time of a row and its sums in any square of scores, in scores; 0: part of startUs
};

struct BlockTraits {
  PassTraits forward, backward;
  double addBandwidth = 0;        ///< bytes per second at which partial results are added; 0: blocks add their results
  bool transfersTakeSms = false;  ///< transfers within a node run as kernels, next to the blocks
  double smsOfTransfers = 0;      ///< share of the SMs that transfers between nodes take
  bool readsOut = false;          ///< backward reads `out` and computes delta itself (Block::needsOut())
  bool roundsGradients = false;   ///< gradients of one call are rounded to the type of the tensors
};

/// The traits of the kernel for tensors of `type` on the memory of `info`. `kernel`: the caller's, or functions NULL.
BlockTraits blockTraits(const seqparCommInfo_t& info, const seqparPlanInfo_t& plan, seqparDataType_t type,
                        const seqparAttnKernel_t& kernel);

}  // namespace seqpar::attn
