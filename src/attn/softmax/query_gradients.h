// Backward with keys that stay and queries that travel: BURST's, and RING_PASS_Q's.
#pragma once

#include "attn/softmax/base.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {

class QueryGradientRing {
 public:
  /// `block` is of all heads; its owner carves and prepares it.
  QueryGradientRing(const Problem& problem, Exec& exec, Block& block);

  void carve(Arena& arena);
  void open() { rotation_.open(); }
  /// `delta`: of this rank's rows, made before.
  void backward(const seqparAttnBackwardArgs_t& args, const BlockInputs& own, const Rows& delta);

 private:
  const Problem& problem_;
  Exec& exec_;
  Block& block_;
  Rotation rotation_;                               ///< q, dOut, lse, and delta or out; dq behind them
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1], of the ranges that travel
  Tensor ownDq_, dq_, dk_, dv_;                     ///< dq_: of one step's queries
};

}  // namespace seqpar::attn
