// Common code of linear_attn_perf and softmax_attn_perf: one rank's arrays of a layer, plans on them, and their passes.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
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

/// Throws std::runtime_error with the library's error text unless `result` is success.
void requireAttn(seqparResult_t result, const char* call);

/// Tokens per rank for queries of about `bytes`.
size_t tokensFor(size_t bytes, size_t bytesOfToken);

/// GLA's models divide the log-decays by this (gate_logit_normalizer).
constexpr double kGateNormalizer = 16;

/// Elements of a rank's arrays; gradients have equal sizes.
struct LayerSizes {
  size_t q, k, v, out;
  std::array<size_t, SEQPAR_ATTN_MAX_GATES> gates{};  ///< 0: no such array, as for `saved` and `lse`
  std::array<bool, SEQPAR_ATTN_MAX_GATES> betas{};    ///< gates with values between 1/4 and 1 instead of log-decays
  size_t saved = 0, lse = 0;
  int type = seqparFloat32, gateType = seqparFloat32;
  double gateNormalizer = kGateNormalizer;
  /// Log-decays from their count and a seed; null: drawnGates().
  std::function<std::vector<float>(size_t, unsigned)> decays{};
};

/// Log-decays: logarithms of values between 1/4 and 1, in 8 bits, divided by `normalizer`. Each call restarts the
/// sequence.
std::vector<float> drawnGates(size_t count, double normalizer, unsigned seed);
/// Values between 1/4 and 1, in 8 bits.
std::vector<float> drawnBetas(size_t count, unsigned seed);

/// One rank's arrays, shared by the plans of all algorithms; the inputs are exact in all types (gates: if the
/// normalizer is a power of 2).
class Layer {
 public:
  Layer(const LayerSizes& sizes, Group& group);

  seqparAttnForwardArgs_t forward() const;
  seqparAttnBackwardArgs_t backward() const;

  /// The minimal traffic of a pass in bytes: its inputs once and its outputs once.
  size_t minimalBytes(Pass pass) const;
  size_t queryBytes() const { return q_->bytes(); }

  /// Fills the outputs with NaN.
  void corrupt(Pass pass);
  /// Outputs that were not written, or are NaN.
  size_t wrong(Pass pass);

  enum class Array { Q, K, V, Out, DOut, Dq, Dk, Dv };
  /// An array's current values, [batch][tokens][heads][dim].
  std::vector<float> numbers(Array array);

 private:
  using BufferPointer = std::unique_ptr<Buffer>;
  size_t notNumbers(Buffer& buffer) const;

  LayerSizes sizes_;
  BufferPointer q_, k_, v_, out_, dOut_, dq_, dk_, dv_, saved_, lse_;
  std::array<BufferPointer, SEQPAR_ATTN_MAX_GATES> gates_, dGates_;
};

/// A plan's self-description: its algorithm, and the cost model's estimate.
struct Expectation {
  std::string algorithm, block;
  double forwardUs = 0, backwardUs = 0;
  double bytes = 0;  ///< sent per rank, forward and backward

  double us(Pass pass) const { return (pass == kBackward ? 0 : forwardUs) + (pass == kForward ? 0 : backwardUs); }
};

/// Parses the text of seqparAttnPlanExplain().
Expectation expectationOf(const std::string& explanation);

/// A prepared plan.
class LayerPlan {
 public:
  /// Collective.
  LayerPlan(const seqparAttnDesc_t& desc, Group& group);
  LayerPlan(const LayerPlan&) = delete;
  LayerPlan& operator=(const LayerPlan&) = delete;
  ~LayerPlan();

  seqparAttnPlan_t get() const { return plan_; }
  size_t workspace() const { return workspace_; }
  /// Memory for data that its forward pass leaves for its backward pass; null: none.
  void* reserve() const { return reserve_ == nullptr ? nullptr : reserve_->data(); }
  Expectation expectation() const;
  /// The layout of its tokens.
  seqparLayout_t layout() const;

 private:
  seqparAttnPlan_t plan_ = nullptr;
  size_t workspace_ = 0;
  std::unique_ptr<Buffer> reserve_;
};

/// For the backward pass alone, a forward pass runs before the loops.
Work passWork(const std::shared_ptr<LayerPlan>& plan, const std::shared_ptr<Layer>& layer, Pass pass, void* stream);

}  // namespace seqpar::perf
