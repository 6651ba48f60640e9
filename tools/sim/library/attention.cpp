// Exec and block kernels that charge the machine file's times and touch no data.
#include <algorithm>
#include <cmath>

#include "api/handles.h"
#include "attn/block/block.h"
#include "attn/boundary.h"
#include "attn/exec/exec.h"
#include "library/recorder.h"

namespace seqpar::attn {
namespace {

using sim::Recorder;

class SimulatedExec final : public Exec {
 public:
  explicit SimulatedExec(int device) : device_(device) {
    if (onHosts()) require(seqparStreamCreate(&hostSide_), "attention plan", nullptr);
  }
  ~SimulatedExec() override {
    if (hostSide_ != nullptr) seqparStreamDestroy(hostSide_);
  }
  SimulatedExec(const SimulatedExec&) = delete;
  SimulatedExec& operator=(const SimulatedExec&) = delete;
  int device() const override { return device_; }
  std::shared_ptr<void> allocate(size_t bytes, const char*) override {
    return {Recorder::current().allocate(bytes), [](void*) {}};
  }
  void begin(void* stream) override { main_ = stream; }
  void follow() override {}
  void guard(std::span<const Tensor>) override {}
  void finish() override {}
  void awaitSideWork() noexcept override {}
  void drain() noexcept override {}
  void* main() const override { return main_; }
  void* side() const override { return onHosts() ? hostSide_ : static_cast<void*>(const_cast<SimulatedExec*>(this)); }
  void fork() override { order(recordedSide(), main_); }
  void join() override { order(main_, recordedSide()); }
  void copy(const Tensor& to, const Tensor& from) override { charge(to.bytes() + from.bytes(), "copy"); }
  void copy(const Rows& to, const Rows& from) override { charge(to.bytes() + from.bytes(), "copy"); }
  void add(const Tensor& to, const Tensor& from) override { charge(2 * to.bytes() + from.bytes(), "add"); }
  void zero(const Tensor& tensor) override { charge(tensor.bytes(), "zero"); }
  void fill(const Rows& rows, float) override { charge(rows.bytes(), "fill"); }

 private:
  bool onHosts() const { return device_ == SEQPAR_HOST_DEVICE; }
  /// The identity of the side stream in recorded work.
  const void* recordedSide() const {
    return onHosts() ? static_cast<const void*>(findStream("attention plan", hostSide_).get()) : side();
  }
  static void order(const void* later, const void* earlier) {
    auto& recorder = Recorder::current();
    recorder.wait(later, recorder.record(earlier));
  }
  void charge(size_t bytes, const char* label) const {
    Recorder::current().memory(main_, static_cast<double>(bytes), label);
  }
  int device_;
  void* main_ = nullptr;
  seqparStream_t hostSide_ = nullptr;
};

/// Partial results are added in pairs: reads two and the sum in fp32, writes the sum.
class SimulatedBlock final : public Block {
 public:
  SimulatedBlock(Exec& exec, const BlockShape& shape) : Block(exec), exec_(exec), shape_(shape) {}

  void expect(std::span<const Rectangle>, int64_t, int64_t, attn::Passes) override {}
  void carve(Arena&) override {}
  void prepare() override {}
  bool needsOut() const override { return shape_.type != seqparFloat32; }
  attn::KernelCalls calls() const override { return {}; }
  const char* name() const override { return "simulated"; }

  class Sum final : public Accumulator {
   public:
    explicit Sum(SimulatedBlock& block) : block_(block) {}
    void add(const BlockInputs& in, std::span<const Rectangle> rectangles) override {
      block_.attend(rectangles, false);
      if (parts_++ > 0) block_.charge(block_.bytesOfSum(in.q), "merge");
    }
    void finish(const float*, const Tensor& out, const Rows&) override {
      if (parts_ != 1) block_.charge(3 * out.bytes(), "finish");
    }

   private:
    SimulatedBlock& block_;
    int parts_ = 0;
  };
  class GradientSum final : public GradientAccumulator {
   public:
    GradientSum(SimulatedBlock& block, const Tensor& sum) : GradientAccumulator(sum), block_(block) {}
    void grew() {
      if (parts_++ > 0) block_.charge(block_.bytesOfSum(memory()), "merge");
    }
    void finish(std::span<const Addend> addends, const Tensor& out) override {
      size_t bytes = parts_ > 1 ? memory().bytes() + out.bytes() : 0;
      for (const auto& addend : addends) bytes += addend.tensor.bytes() + (parts_ > 1 ? 0 : 2 * out.bytes());
      block_.charge(static_cast<double>(bytes), "finish");
    }
    void addTo(const Tensor& total) override {
      block_.charge(static_cast<double>(2 * total.bytes()) +
                        static_cast<double>(memory().elements()) * static_cast<double>(bytesOf(block_.shape_.type)),
                    "add");
    }
    void store() override { block_.charge(static_cast<double>(memory().bytes()), "store"); }

   private:
    SimulatedBlock& block_;
    int parts_ = 0;
  };
  std::unique_ptr<Accumulator> accumulate(const Partial&, const Tensor&, const Rows&) override {
    return std::make_unique<Sum>(*this);
  }
  std::unique_ptr<GradientAccumulator> accumulate(GradientOf, const Tensor& sum, const Tensor&) override {
    return std::make_unique<GradientSum>(*this, sum);
  }

  void forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial&) override {
    attend(rectangles, false);
    charge(bytesOfSum(in.q), "merge");
  }
  void merge(const Partial& into, const Partial& from) override {
    charge(static_cast<double>(2 * into.out.bytes() + from.out.bytes()), "merge");
  }
  void finish(const Partial& partial, const float*, const Tensor& out, const Rows&) override {
    charge(static_cast<double>(partial.out.bytes() + out.bytes()), "finish");
  }
  void delta(const Tensor& out, const Tensor& dOut, const Rows&) override {
    charge(static_cast<double>(out.bytes() + dOut.bytes()), "delta");
  }
  void backward(const BlockGradientInputs&, std::span<const Rectangle> rectangles,
                const BlockGradients& into) override {
    attend(rectangles, true);
    for (const auto* sum : {&into.dq, &into.dk, &into.dv}) charge(bytesOfSum(*sum), "merge");
  }
  void backward(const BlockGradientInputs&, std::span<const Rectangle> rectangles,
                const GradientAccumulators& into) override {
    attend(rectangles, true);
    for (auto* sum : {&into.dq, &into.dk, &into.dv}) static_cast<GradientSum*>(sum)->grew();
  }
  void sinkGradient(const float*, const Rows& lse, const Rows&, float*) override {
    charge(static_cast<double>(2 * lse.bytes()), "sinks");
  }

 private:
  double bytesOfSum(const Tensor& t) const {
    return static_cast<double>(t.elements()) * (4 + static_cast<double>(bytesOf(shape_.type)));
  }
  void charge(double bytes, const char* label) const { Recorder::current().memory(exec_.main(), bytes, label); }
  void charge(size_t bytes, const char* label) const { charge(static_cast<double>(bytes), label); }

  /// TFLOP/s of a square of scores. A host's causal square beyond the table: full ones and, along its diagonal, the
  /// largest of the table.
  double rateOf(const char* kernel, bool full, double size) const {
    const auto& tables = Recorder::current().machine().softmax;
    const auto find = [&](const char* mask) -> const sim::Curve& {
      return tables.at(std::string(typeName()) + mask + kernel);
    };
    if (full) return find("full").at(size);
    const auto& causal = find("causal");
    const double largest = causal.points.back().first;
    if (!onHost() || size <= largest) return causal.at(size);
    const double share = largest / size;
    return 1 / (share / causal.at(largest) + (1 - share) / find("full").at(size));
  }
  bool onHost() const { return exec_.device() == SEQPAR_HOST_DEVICE; }
  const char* typeName() const { return !onHost() ? "" : shape_.type == seqparFloat32 ? "fp32 " : "bf16 "; }

  /// One kernel a rectangle, at the measured rate of a square of as many scores.
  void attend(std::span<const Rectangle> rectangles, bool backward) const {
    for (const auto& rectangle : rectangles) {
      const auto scores = static_cast<double>(rectangle.scores());
      if (scores == 0) continue;
      const auto area = static_cast<double>(rectangle.rows) * static_cast<double>(rectangle.columns);
      const bool full = scores > 0.75 * area;
      const auto heads = static_cast<double>(shape_.batch * shape_.heads);
      const double flops =
          2 * (backward ? 2.5 : 1) * scores * heads * static_cast<double>(shape_.headDim + shape_.valueDim);
      const double side = std::sqrt(full ? scores : 2 * scores);
      // GPUs need enough work for all SMs, a processor computes head after head.
      const double size = onHost() ? side : side * std::sqrt(heads / 32);
      const double rate = rateOf(backward ? " backward" : " forward", full, size);
      Recorder::current().compute(exec_.main(), flops / rate * 1e-6,
                                  backward ? "attention backward" : "attention forward");
    }
  }

  Exec& exec_;
  BlockShape shape_;
};

}  // namespace

std::unique_ptr<Exec> makeExec(seqparComm_t comm, int) {
  int device = Recorder::current().machine().onHosts() ? SEQPAR_HOST_DEVICE : 0;
  if (comm != nullptr) require(seqparCommDevice(comm, &device), "attention plan", nullptr);
  return std::make_unique<SimulatedExec>(device);
}

std::unique_ptr<Block> makeBlock(Exec& exec, const BlockShape& shape) {
  return std::make_unique<SimulatedBlock>(exec, shape);
}

}  // namespace seqpar::attn

const char* seqparAttnGpuKernels(void) {
  return "simulated";
}
