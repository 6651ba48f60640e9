// The passes of linear attention on a GPU: launches of the kernels in kernels/attn/linear.
#pragma once

#include "attn/linear/passes/passes.h"
#include "kernels/attn/linear/args.h"

namespace seqpar::attn::linear {

/// What the kernels get for a shard; tensors have no data yet.
LinearProblem kernelProblem(const Shard& shard);

/// Why no kernel can do what a shard asks for; NULL: there is one.
const char* whyNoKernel(const Shard& shard);

class DevicePasses final : public Passes {
 public:
  /// Throws Error.
  DevicePasses(const Shard& shard, Exec& exec);

  void carve(Arena& arena) override;
  void open() override;
  std::string name() const override;

  float* state() const override { return rankState_; }
  float* decay() const override { return rankDecay_; }
  seqparDecayForm_t decayForm() const override { return seqparDecayLog; }

  void states(const Inputs& in, bool mapWanted) override;
  bool worksBesideScan() const override { return false; }
  void besideScan(const Inputs&) override {}
  void outputs(const Inputs& in, const Tensor& out, const float* incoming) override;
  void forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) override;
  void stateGradients(const Inputs& in, const Gradients& gradients, bool mapWanted) override;
  void recompute(const Inputs& in, const float* saved) override;
  void gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) override;
  void backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming,
                     float* dBefore) override;
  void copyStates(float* to, const float* from) override;

 private:
  LinearProblem problem(const Inputs& in) const;
  HeadRange allHeads() const { return {0, static_cast<int>(shard_.heads)}; }
  void makeStates(const Inputs& in, bool forRank);
  void makeOutputs(const Inputs& in, const Tensor& out, const float* incoming, float* final);
  void makeStateGradients(const Inputs& in, const Gradients& gradients, bool forRank);
  void makeGradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming,
                     float* dBefore);

  Shard shard_;
  Exec& exec_;
  Segments segments_;
  SegmentMaps before_, after_;
  float *rankState_ = nullptr, *rankDecay_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<int64_t> starts_;
  int64_t* deviceStarts_ = nullptr;
};

}  // namespace seqpar::attn::linear
