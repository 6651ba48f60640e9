// A block kernel of the caller (seqparAttnKernel_t): one call per rectangle; its partial result is merged.
#pragma once

#include "attn/block/block.h"

namespace seqpar::attn {

class TiledBlock final : public Block {
 public:
  /// `base` merges, finishes and computes deltas.
  TiledBlock(Exec& exec, const BlockShape& shape, std::unique_ptr<Block> base);

  void expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes) override;
  void carve(Arena& arena) override;
  void prepare() override { base_->prepare(); }
  bool needsOut() const override { return true; }
  void forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) override;
  void merge(const Partial& into, const Partial& from) override { base_->merge(into, from); }
  void finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) override {
    base_->finish(partial, sinks, out, lse);
  }
  void delta(const Tensor& out, const Tensor& dOut, const Rows& delta) override { base_->delta(out, dOut, delta); }
  using Block::backward;
  void backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                const BlockGradients& into) override;
  void sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) override {
    base_->sinkGradient(sinks, lse, delta, dSinks);
  }
  KernelCalls calls() const override { return calls_; }
  const char* name() const override { return "the caller's kernel"; }

 private:
  /// Calls body(firstHead, heads, firstKvHead, kvHeads) for groups of heads that fit one tile.
  template <typename Body>
  void eachGroup(Body body) const;
  seqparAttnTile_t tileOf(const Rectangle& r, int64_t heads, int64_t kvHeads) const;

  Exec& exec_;
  BlockShape shape_;
  std::unique_ptr<Block> base_;
  KernelCalls calls_;
  int64_t rows_ = 0, columns_ = 0;  ///< of the largest rectangle
  Tensor out_, dq_, dk_, dv_;
  Rows lse_;
};

}  // namespace seqpar::attn
