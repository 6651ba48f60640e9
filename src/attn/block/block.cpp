// Accumulators of blocks that always store their sums in memory.
#include "attn/block/block.h"

#include <limits>

namespace seqpar::attn {
namespace {

class MemoryAccumulator final : public Accumulator {
 public:
  MemoryAccumulator(Block& block, const Partial& partial) : block_(block), partial_(partial) {}

  void add(const BlockInputs& in, std::span<const Rectangle> rectangles) override {
    block_.forward(in, rectangles, partial_);
  }
  void finish(const float* sinks, const Tensor& out, const Rows& lse) override {
    block_.finish(partial_, sinks, out, lse);
  }

 private:
  Block& block_;
  Partial partial_;
};

class MemoryGradientAccumulator final : public GradientAccumulator {
 public:
  MemoryGradientAccumulator(Block& block, Exec& exec, const Tensor& sum)
      : GradientAccumulator(sum), block_(block), exec_(exec) {}

  void finish(std::span<const Addend> addends, const Tensor& out) override { block_.finishSum(memory(), addends, out); }
  void addTo(const Tensor& total) override { exec_.add(total, memory()); }
  void store() override {}

 private:
  Block& block_;
  Exec& exec_;
};

}  // namespace

void clear(Exec& exec, const Partial& partial) {
  exec.fill(partial.lse, -std::numeric_limits<float>::infinity());
}

std::unique_ptr<Accumulator> Block::accumulate(const Partial& partial, const Tensor&, const Rows&) {
  clear(runner_, partial);
  return std::make_unique<MemoryAccumulator>(*this, partial);
}

std::unique_ptr<GradientAccumulator> Block::accumulate(GradientOf, const Tensor& sum, const Tensor&) {
  runner_.zero(sum);
  return std::make_unique<MemoryGradientAccumulator>(*this, runner_, sum);
}

void Block::backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                     const GradientAccumulators& into) {
  backward(in, rectangles, BlockGradients{into.dq.memory(), into.dk.memory(), into.dv.memory()});
}

void Block::finishSum(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  for (const auto& addend : addends) {
    if (addend.tensor.elements() > 0) runner_.add(sum.rows(addend.first, addend.tensor.tokens), addend.tensor);
  }
  if (out.data != sum.data) runner_.copy(out, sum);
}

}  // namespace seqpar::attn
