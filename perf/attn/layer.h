// What linear_attn_perf and softmax_attn_perf share: one rank's arrays of a layer, plans on them, and their passes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/session.h"
#include "seqpar/attn.h"

namespace seqpar::perf {

enum Pass { kForward, kBackward, kStep };
/// "step" is both.
const Names& passNames();

/// Throws std::runtime_error with the library's own sentence unless `result` is success.
void requireAttn(seqparResult_t result, const char* call);

/// Tokens of a rank whose queries have about `bytes`.
size_t tokensFor(size_t bytes, size_t bytesOfToken);

/// By what GLA's models divide the logarithms of decays (gate_logit_normalizer).
constexpr double kGateNormalizer = 16;

/// Elements of a rank's arrays; gradients have as many.
struct LayerSizes {
  size_t q, k, v, out;
  size_t gate = 0, saved = 0, lse = 0;  ///< 0: there is none
  int type = seqparFloat32, gateType = seqparFloat32;
  double gateNormalizer = kGateNormalizer;
};

/// Logarithms of decays: of numbers between 1/4 and 1, in 8 bits, divided by `normalizer`. They begin anew with each
/// call.
std::vector<float> drawnGates(size_t count, double normalizer, unsigned seed);

/// One rank's arrays, which the plans of all algorithms work on; inputs have numbers that all types hold exactly
/// (gates: with a normalizer that is a power of 2).
class Layer {
 public:
  Layer(const LayerSizes& sizes, Group& group);

  seqparAttnForwardArgs_t forward() const;
  seqparAttnBackwardArgs_t backward() const;

  /// Bytes that a pass cannot do without: its inputs once and its outputs once.
  size_t minimalBytes(Pass pass) const;
  size_t queryBytes() const { return q_->bytes(); }

  /// Makes outputs no numbers.
  void spoil(Pass pass);
  /// Outputs that were not written, or came to no number.
  size_t wrong(Pass pass);

  enum class Array { Q, K, V, Out, DOut, Dq, Dk, Dv };
  /// An array as it is now, [batch][tokens][heads][dim].
  std::vector<float> numbers(Array array);

 private:
  using BufferPointer = std::unique_ptr<Buffer>;
  size_t notNumbers(Buffer& buffer) const;

  LayerSizes sizes_;
  BufferPointer q_, k_, v_, out_, dOut_, dq_, dk_, dv_, gate_, dGate_, saved_, lse_;
};

/// What a plan says of itself: the algorithm that it runs, and what the cost model expects of it.
struct Expectation {
  std::string algorithm, block;
  double forwardUs = 0, backwardUs = 0;
  double bytes = 0;  ///< that a rank sends, forward and backward

  double us(Pass pass) const { return (pass == kBackward ? 0 : forwardUs) + (pass == kForward ? 0 : backwardUs); }
};

/// Reads the text of seqparAttnPlanExplain().
Expectation expectationOf(const std::string& explanation);

/// A plan that is ready to run.
class LayerPlan {
 public:
  /// Collective.
  LayerPlan(const seqparAttnDesc_t& desc, Group& group);
  LayerPlan(const LayerPlan&) = delete;
  LayerPlan& operator=(const LayerPlan&) = delete;
  ~LayerPlan();

  seqparAttnPlan_t get() const { return plan_; }
  size_t workspace() const { return workspace_; }
  /// What its forward pass leaves for its backward pass; null: nothing.
  void* reserve() const { return reserve_ == nullptr ? nullptr : reserve_->data(); }
  Expectation expectation() const;
  /// The layout of its tokens.
  seqparLayout_t layout() const;

 private:
  seqparAttnPlan_t plan_ = nullptr;
  size_t workspace_ = 0;
  std::unique_ptr<Buffer> reserve_;
};

/// Backward alone has a forward pass before its loops.
Work passWork(const std::shared_ptr<LayerPlan>& plan, const std::shared_ptr<Layer>& layer, Pass pass, void* stream);

}  // namespace seqpar::perf
