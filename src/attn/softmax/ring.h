// RING and its kin: keys and values go round.
#pragma once

#include "attn/softmax/base.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {

class RingOperator : public SoftmaxOperator {
 public:
  /// `inner`: ranks of a window of a double ring; the number of ranks: a plain ring. Without `gradientsTravel` backward
  /// is somebody else's.
  RingOperator(const Problem& problem, Exec& exec, int inner, bool gradientsTravel = true);

  void carve(Arena& arena) override;
  void open() override;
  void forward(const seqparAttnForwardArgs_t& args) override;
  void backward(const seqparAttnBackwardArgs_t& args) override;

 private:
  /// Fills the ring's own tensors and begins a call.
  void load(const Tensor& k, const Tensor& v);

  Rotation rotation_;
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1]
  bool gradientsTravel_;
  Partial partial_;
  Rows delta_;
  Tensor dq_, dk_, dv_;  ///< backward: sums of this rank's queries, and of one step's keys
};

}  // namespace seqpar::attn
