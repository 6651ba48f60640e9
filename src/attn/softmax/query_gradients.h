// Backward pass with rotating queries and stationary keys, for BURST and RING_PASS_Q.
#pragma once

#include "attn/softmax/base.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {

class QueryGradientRing {
 public:
  /// `block` covers all heads; its owner carves and prepares it.
  QueryGradientRing(const Problem& problem, Exec& exec, Block& block);

  void carve(Arena& arena);
  void open() { rotation_.open(); }
  /// `delta`: of this rank's rows, already computed.
  void backward(const seqparAttnBackwardArgs_t& args, const BlockInputs& own, const Rows& delta);

 private:
  const Problem& problem_;
  Exec& exec_;
  Block& block_;
  Rotation rotation_;                               ///< q, dOut, lse, and delta or out; dq follows
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1], of the rotating ranges
  Tensor ownDq_, dq_, dk_, dv_;                     ///< dq_: of the queries of one step
};

}  // namespace seqpar::attn
