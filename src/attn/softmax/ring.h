// RING and its kin: keys and values go round.
#pragma once

#include <span>

#include "attn/softmax/base.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {

/// The share of a rank's own block that backward leaves for the time in which sums go home.
double lateShareOfRing(const Problem& problem);
/// In which type gradients of keys travel.
seqparDataType_t ringSumType(const Problem& problem, const RingOrder& order);

class RingOperator : public SoftmaxOperator {
 public:
  /// `inner`: ranks of a window of a double ring; the number of ranks: a plain ring. Without `gradientsTravel` backward
  /// is somebody else's.
  RingOperator(const Problem& problem, Exec& exec, int inner, bool gradientsTravel = true);

  void carve(Arena& arena) override;
  void open() override;
  void forward(const seqparAttnForwardArgs_t& args) override;
  void backward(const seqparAttnBackwardArgs_t& args) override;
  /// The same into tensors of any type, in the place of the arguments'.
  void forward(const seqparAttnForwardArgs_t& args, const Tensor& out);
  void backward(const seqparAttnBackwardArgs_t& args, const BlockGradients& to);

 private:
  /// Fills the ring's own tensors and begins a call.
  void load(const Tensor& k, const Tensor& v);

  /// A part of backward: adds to dq_, dk and dv.
  void addGradients(int step, std::span<const Rectangle> seen, const BlockInputs& own,
                    const seqparAttnBackwardArgs_t& args, const Tensor& dk, const Tensor& dv);

  Rotation rotation_;
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1], of the ranges that travel
  std::vector<Rectangle> early_, late_;             ///< backward: one's own, before the first hop and beside the last
  bool gradientsTravel_;
  Partial partial_;
  Rows delta_;
  Tensor dq_, dk_, dv_;   ///< backward: sums of this rank's queries, and of one step's keys
  Tensor ownDk_, ownDv_;  ///< of this rank's keys
};

}  // namespace seqpar::attn
