// RING and its kin: keys and values go round.
#pragma once

#include "attn/softmax/base.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {

class RingOperator : public SoftmaxOperator {
 public:
  /// `inner`: ranks of a window of a double ring; the number of ranks: a plain ring.
  RingOperator(const Problem& problem, Exec& exec, int inner);

  void carve(Arena& arena) override;
  void open() override;
  void forward(const seqparAttnForwardArgs_t& args) override;
  void backward(const seqparAttnBackwardArgs_t& args) override;

 protected:
  Rows delta_;

 private:
  /// Fills the ring's own tensors and begins a call.
  void load(const Tensor& k, const Tensor& v);

  Rotation rotation_;
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1]
  Partial partial_;
  Tensor dq_, dk_, dv_;  ///< backward: sums of this rank's queries, and of one step's keys
};

}  // namespace seqpar::attn
