// Passes of linear attention that charge the machine file's times and touch no data.
#include "attn/boundary.h"
#include "attn/linear/operator.h"
#include "attn/linear/passes/passes.h"
#include "library/recorder.h"

namespace seqpar::attn::linear {
namespace {

using sim::Recorder;

/// Shares of a pass's time that depend on the passes' split; the machine file has them for the forward.
constexpr double kGradientStates = 0.2, kRecompute = 0.15;

class SimulatedPasses final : public Passes {
 public:
  SimulatedPasses(const Shard& shard, Exec& exec) : shard_(shard), exec_(exec) {
    const auto& machine = Recorder::current().machine();
    const auto found = machine.linear.find(shard.family->name);
    if (found == machine.linear.end()) {
      fail(seqparInvalidUsage, "the machine file has no linear.families.", shard.family->name);
    }
    const double size = static_cast<double>(shard.tokens * shard.allHeads()) / 32 *
                        static_cast<double>(shard.dk * shard.dv) / (128.0 * 128.0);
    splitForward_ = found->second.splitForward;
    splitBackward_ = found->second.splitBackward;
    forwardUs_ = size == 0 ? 0 : found->second.forward.proportional(size) * 1e3;
    backwardUs_ = size == 0 ? 0 : found->second.backward.proportional(size) * 1e3;
  }

  void carve(Arena& arena) override {
    state_ = static_cast<float*>(arena.take(shard_.states() * sizeof(float)));
    const bool matrix = shard_.family->transition == seqparScanMatrix;
    const size_t width = matrix ? shard_.dk * shard_.dk : shard_.width();
    decay_ = static_cast<float*>(arena.take(shard_.allHeads() * width * sizeof(float)));
  }
  void open() override {}
  std::string name() const override { return "simulated"; }
  StateMap map() const override {
    const auto kind = shard_.family->transition;
    const bool logarithms = kind == seqparScanScalar || kind == seqparScanDiag;
    return {state_, kind == seqparScanSum ? nullptr : decay_, kind, logarithms ? seqparDecayLog : seqparDecayLinear};
  }
  void states(const Inputs&, MapUse) override {
    charge(forwardUs_ * (machine().statesShare + splitForward_ - 1), "states");
  }
  bool worksBesideScan() const override { return false; }  // as on GPUs
  void besideScan(const Inputs&) override {}
  void outputs(const Inputs&, const Tensor&, const float*) override {
    charge(forwardUs_ * (1 - machine().statesShare), "outputs");
  }
  void forwardAlone(const Inputs&, const Tensor&, const float*, float*) override { charge(forwardUs_, "forward"); }
  void stateGradients(const Inputs&, const Gradients&, MapUse) override {
    charge(backwardUs_ * (kGradientStates + splitBackward_ - 1), "state gradients");
  }
  void recompute(const Inputs&, const float*) override { charge(backwardUs_ * kRecompute, "recompute states"); }
  void gradients(const Inputs&, const Gradients&, const float*, const float*) override {
    charge(backwardUs_ * (1 - kGradientStates - kRecompute), "gradients");
  }
  void backwardAlone(const Inputs&, const Gradients&, const float*, const float*, float*) override {
    charge(backwardUs_, "backward");
  }
  void copyStates(float*, const float*) override {
    Recorder::current().memory(exec_.main(), static_cast<double>(2 * shard_.states() * sizeof(float)), "copy states");
  }

 private:
  static const sim::Machine& machine() { return Recorder::current().machine(); }
  void charge(double us, const char* label) const {
    if (us > 0) Recorder::current().compute(exec_.main(), us, label);
  }
  Shard shard_;
  Exec& exec_;
  double forwardUs_ = 0, backwardUs_ = 0, splitForward_ = 1, splitBackward_ = 1;
  float *state_ = nullptr, *decay_ = nullptr;
};

}  // namespace

std::string refuses(const Problem& problem) {
  const auto* const family = findFamily(problem.desc.family);
  return Recorder::current().machine().linear.contains(family->name) ? "" : "has no kernel times in the machine file";
}

std::unique_ptr<Passes> makePasses(const Shard& shard, Exec& exec) {
  return std::make_unique<SimulatedPasses>(shard, exec);
}

}  // namespace seqpar::attn::linear
