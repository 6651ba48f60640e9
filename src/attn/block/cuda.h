// Block kernel on CUDA: cuDNN where possible, built-in band kernels otherwise.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "attn/block/cuda_arrange.h"
#include "attn/block/cuda_pending.h"
#include "attn/block/cuda_steps.h"
#include "attn/block/cudnn.h"

namespace seqpar::attn {

class CudaBlock final : public Block {
 public:
  /// Without `kernels` it only merges, adds and finishes results of the caller's kernels.
  CudaBlock(CudaExec& exec, const BlockShape& shape, bool kernels);

  void expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes) override;
  void carve(Arena& arena) override;
  void prepare() override;
  bool needsOut() const override { return limits_.cudnn; }
  bool accumulatesInMemory() const override { return !accumulates_ || mostParts() > kMostPending; }
  std::unique_ptr<Accumulator> accumulate(const Partial& partial, const Tensor& out, const Rows& lse) override;
  std::unique_ptr<GradientAccumulator> accumulate(GradientOf which, const Tensor& sum, const Tensor& out) override;
  void forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) override;
  void merge(const Partial& into, const Partial& from) override;
  void finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) override;
  void delta(const Tensor& out, const Tensor& dOut, const Rows& delta) override;
  void backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                const BlockGradients& into) override;
  void backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                const GradientAccumulators& into) override;
  void finishSum(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) override;
  void sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) override;
  KernelCalls calls() const override;
  const char* name() const override { return name_.c_str(); }

 private:
  class PendingAccumulator;
  class PendingGradientAccumulator;

  /// A step and its tables in device memory, as offsets in constants_; the tables are relative to its first token.
  struct Prepared {
    BlockStep step;
    TokenRange queries, keys;  ///< range of its tokens
    SdpaShape shape;           ///< for dense tensors
    size_t bands = 0, rows = 0, columns = 0, qOffset = 0, kOffset = 0, vOffset = 0, outOffset = 0, lseOffset = 0;
    int64_t longestRows = 0, longestColumns = 0;
    bool allRows = false, allColumns = false;  ///< every token of the range is in a rectangle
  };
  /// The steps of a list of rectangles.
  struct Work {
    std::vector<Rectangle> rectangles;
    int64_t rows, columns;
    Passes passes;
    std::vector<Prepared> forward, backward;
    size_t order = 0;     ///< forward: the columns of the keys, as an offset in constants_
    int64_t ordered = 0;  ///< their number; 0: all columns as they are
  };

  int64_t rowHeads() const { return shape_.rowHeads == 0 ? shape_.heads : shape_.rowHeads; }
  /// The most parts of a result, after carve().
  size_t mostParts() const;
  std::vector<Prepared> prepareSteps(Work& work, bool backward);
  bool build(Prepared& prepared, const Work& work, bool backward);
  /// A deterministic backward pass takes memory for the scores of all entries at their longest lengths, so its plans
  /// are exact.
  bool rounds() const { return shape_.changing && !shape_.deterministic; }
  RaggedSizes raggedSizes(const Prepared& prepared, int64_t rows, int64_t columns) const;
  void describe(Prepared& prepared);
  void load(const Prepared& prepared);
  void capture(const Prepared& prepared);
  Work* place(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns);  ///< null: not expected
  const Work& find(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns);
  template <typename Value>
  size_t constant(const std::vector<Value>& values);
  template <typename Value>
  const Value* constantAt(size_t offset) const {
    return reinterpret_cast<const Value*>(constants_ + offset);
  }

  Tensor asPlanned(const Tensor& tensor, const Tensor& scratch);
  BlockInputs asPlanned(const BlockInputs& in);
  BlockInputs forwardInputs(const Work& work, const BlockInputs& in);
  void point(const Prepared& prepared, SdpaPointers& pointers) const;
  SdpaPointers pointersOf(const Prepared& prepared, const BlockInputs& in) const;
  softmax::BandProblem bandProblem(const Prepared& prepared, const BlockInputs& in) const;
  static BlockInputs tokensOf(const Prepared& prepared, const BlockInputs& in);
  static BlockGradientInputs tokensOf(const Prepared& prepared, const BlockGradientInputs& in);
  void accumulateForward(const BlockInputs& in, std::span<const Rectangle> rectangles, PendingPartial& into);
  /// Calls place(prepared) for the memory of each step's result, and take(prepared, place, lse) after the step.
  template <typename At, typename Take>
  void forwardSteps(const BlockInputs& in, std::span<const Rectangle> rectangles, const At& at, const Take& take);
  /// Likewise for the gradients of queries (0), keys (1) and values (2): at(i, first, tokens), take(i, place).
  template <typename At, typename Take>
  void backwardSteps(const BlockGradientInputs& in, std::span<const Rectangle> rectangles, const At& at,
                     const Take& take);
  softmax::RowView runForward(const Prepared& prepared, const BlockInputs& in, const Place& place);
  void runBackward(const Prepared& prepared, const BlockGradientInputs& in, const std::array<Place, 3>& places);

  CudaExec& exec_;
  BlockShape shape_;
  BlockLimits limits_;
  bool kernels_, accumulates_ = false, built_ = false;
  std::string name_;
  std::optional<Sdpa> sdpa_;
  std::vector<Work> works_;
  std::vector<std::byte> image_;  ///< host copy of constants_
  std::byte* constants_ = nullptr;
  size_t workspaceBytes_ = 0;
  void* workspace_ = nullptr;
  std::array<Tensor, kMostPending> out_, dq_, dk_, dv_;  ///< slots: tokens of the longest shard, with rowHeads()
  std::array<Rows, kMostPending + 1> lse_;
  std::array<Tensor, 5> copies_;  ///< of q, k, v, out, dOut, with the strides of the plans
  Rows lseCopy_, delta_;
  PartialScratch partial_;
  std::array<SumScratch, 3> sums_;  ///< by GradientOf
};

std::unique_ptr<Block> makeCudaBlock(Exec& exec, const BlockShape& shape);

}  // namespace seqpar::attn
