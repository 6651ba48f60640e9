// RING and related algorithms: keys and values rotate.
#pragma once

#include <span>

#include "attn/softmax/base.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {

/// The share of a rank's own block that the backward pass overlaps with the return of the sums.
double lateShareOfRing(const Problem& problem);
/// The type of sent gradients of keys.
seqparDataType_t ringSumType(const Problem& problem, const RingOrder& order);

class RingOperator : public SoftmaxOperator {
 public:
  /// `inner`: ranks per window of a double ring; the number of ranks: a single ring. Without `gradientsRotate` another
  /// class runs the backward pass.
  RingOperator(const Problem& problem, Exec& exec, int inner, bool gradientsRotate = true);

  void carve(Arena& arena) override;
  void open() override;
  void forward(const seqparAttnForwardArgs_t& args) override;
  void backward(const seqparAttnBackwardArgs_t& args) override;
  /// forward() with `out` of any type instead of the arguments' out.
  void forward(const seqparAttnForwardArgs_t& args, const Tensor& out);
  void backward(const seqparAttnBackwardArgs_t& args, const BlockGradients& to);

 private:
  /// Starts a call with this rank's own tensors.
  void load(const Tensor& k, const Tensor& v);

  /// A part of the backward pass.
  void addGradients(int step, std::span<const Rectangle> seen, const BlockInputs& own,
                    const seqparAttnBackwardArgs_t& args, const GradientAccumulators& into);

  Rotation rotation_;
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1], of the rotating ranges
  std::vector<Rectangle> early_, late_;             ///< backward: own keys, before the first hop and during the last
  bool gradientsRotate_;
  Partial partial_;
  Rows delta_;
  Tensor dq_, dk_, dv_;   ///< backward: sums of this rank's queries, and of one step's keys
  Tensor ownDk_, ownDv_;  ///< of this rank's keys
};

}  // namespace seqpar::attn
