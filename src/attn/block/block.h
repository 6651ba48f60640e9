// Block kernels: softmax attention of some queries to some keys, forward and backward, on one rank. One file per
// backend: host.cpp; the caller's kernels; CUDA. Algorithms use this interface only.
#pragma once

#include <memory>
#include <span>

#include "attn/block/rectangles.h"
#include "attn/exec/exec.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn {

/// Common parameters of all calls of a block. Query head h uses key head (h + phase) / group.
struct BlockShape {
  int64_t batch = 1, heads = 1, kvHeads = 1, headDim = 1, valueDim = 1;
  int64_t group = 1, phase = 0;
  int64_t rowHeads = 0;  ///< heads per token of q, out, dOut and dq in memory, at least `heads`; 0: heads
  seqparDataType_t type = seqparFloat32;  ///< of q, k, v, out, dOut
  float scale = 1, softcap = 0;
  bool training = true, deterministic = false;
  bool changing = false;  ///< documents or slices, so later plans have other rectangles
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;  ///< the caller's; functions NULL: the library's
};

/// Attention to some of the keys: out [batch][rows][heads][valueDim], each row normalized over its visible keys, and
/// the logarithm of their sum of exponentials. lse -inf: the row has no visible key and `out` is not read. Two partial
/// results merge as lse' = log(exp(lse_a) + exp(lse_b)), out' = exp(lse_a - lse') out_a + exp(lse_b - lse') out_b.
struct Partial {
  Tensor out;  ///< fp32
  Rows lse;
};

struct BlockInputs {
  Tensor q, k, v;
};

/// lse, delta and out are those of the whole softmax, over the keys of all ranks.
struct BlockGradientInputs {
  Tensor q, k, v, dOut;
  Rows lse;
  Rows delta;  ///< rowsum(dOut * out); not read by blocks that needOut()
  Tensor out;  ///< read by blocks that needOut() only
};

/// Sums of gradients, fp32.
struct BlockGradients {
  Tensor dq, dk, dv;
};

enum class GradientOf { Queries, Keys, Values };

/// The calls that are announced by Block::expect().
struct Passes {
  bool forward = true, backward = true;
  bool accumulated = false;  ///< results are added to accumulators instead of to memory
  bool once = false;         ///< each accumulator gets the results of one call
  bool sinks = false;        ///< accumulators' finish() gets sinks
};

/// Kernel calls of one forward and one backward pass of the block's heads.
struct KernelCalls {
  int64_t forward = 0, backward = 0;
};

/// A tensor to add to a sum, starting at the sum's token `first`.
struct Addend {
  Tensor tensor;
  int64_t first = 0;
};

/// A partial result that grows. The owner of the accumulator may not access its memory: a block may keep results
/// elsewhere and merge them later. finish() ends it.
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  /// As Block::forward() and Block::finish() for a partial result in memory.
  virtual void add(const BlockInputs& in, std::span<const Rectangle> rectangles) = 0;
  virtual void finish(const float* sinks, const Tensor& out, const Rows& lse) = 0;
};

/// A sum of gradients that grows, in memory that its owner may not access. One of finish(), addTo() and store() ends
/// it.
class GradientAccumulator {
 public:
  virtual ~GradientAccumulator() = default;
  /// out = round(sum + addends). The sum's memory is undefined afterwards.
  virtual void finish(std::span<const Addend> addends, const Tensor& out) = 0;
  void finish(const Tensor& out) { finish({}, out); }
  /// total += sum. The sum's memory is undefined afterwards.
  virtual void addTo(const Tensor& total) = 0;
  /// Stores the sum in its memory.
  virtual void store() = 0;
  const Tensor& memory() const { return memory_; }

 protected:
  explicit GradientAccumulator(const Tensor& memory) : memory_(memory) {}

 private:
  Tensor memory_;
};

/// The accumulators of a backward pass, all of one block.
struct GradientAccumulators {
  GradientAccumulator &dq, &dk, &dv;
};

/// All functions enqueue on the Exec's main stream. No workspace is allocated after prepare(). Results are
/// reproducible: sums have a fixed order, except that a GPU's backward pass may add in any order (unless the shape is
/// `deterministic`).
class Block {
 public:
  explicit Block(Exec& exec) : runner_(exec) {}
  virtual ~Block() = default;

  /// Announces, before carve(), calls for these rectangles of shards of `rows` and `columns` tokens.
  virtual void expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes = {}) = 0;
  /// Takes scratch memory; see Arena.
  virtual void carve(Arena& arena) = 0;
  /// Builds kernels for the expected calls. Throws Error.
  virtual void prepare() = 0;

  /// True: backward() reads `out` and computes delta itself, so algorithms that move queries must move `out` too.
  virtual bool needsOut() const = 0;

  /// Whether accumulators read and write the memory that they are given, after carve(). If not, its pointers may be
  /// null.
  virtual bool accumulatesInMemory() const { return true; }

  /// Starts a partial result without keys in the memory of `partial`. `out` and `lse` (data null: not known) are the
  /// later arguments of finish() and may be written from now on, so that the complete result of one kernel is not
  /// copied. The block outlives its accumulators.
  virtual std::unique_ptr<Accumulator> accumulate(const Partial& partial, const Tensor& out, const Rows& lse);
  /// Starts a sum of gradients in the memory of `sum`; `out` as above.
  virtual std::unique_ptr<GradientAccumulator> accumulate(GradientOf which, const Tensor& sum, const Tensor& out);
  std::unique_ptr<GradientAccumulator> accumulate(GradientOf which, const Tensor& sum) {
    return accumulate(which, sum, {});
  }

  /// Merges the attention of the rectangles into `into`, in memory. Rows and columns of rectangles are relative to the
  /// first token of the tensors.
  virtual void forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) = 0;
  /// Merges `from` into `into`; from.out may have any type.
  virtual void merge(const Partial& into, const Partial& from) = 0;
  /// out = partial.out, rounded, 0 for rows without keys; lse (data null: not computed) = partial.lse. `sinks`
  /// [heads] (null: none) are added to the denominator first.
  virtual void finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) = 0;

  /// delta = rowsum(dOut * out). Not needed with needsOut(), except for sinks.
  virtual void delta(const Tensor& out, const Tensor& dOut, const Rows& delta) = 0;
  /// Adds the gradients of the rectangles to `into`, in memory or in accumulators.
  virtual void backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                        const BlockGradients& into) = 0;
  virtual void backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                        const GradientAccumulators& into);
  /// out = round(sum + addends), for a sum in memory, which is undefined afterwards.
  virtual void finishSum(const Tensor& sum, std::span<const Addend> addends, const Tensor& out);
  /// dSinks[heads] = -sum over batch and rows of exp(sink - lse) delta.
  virtual void sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) = 0;

  /// The kernel calls for the expected calls, after carve(). A host counts rectangles.
  virtual KernelCalls calls() const = 0;
  /// The kernel's name for seqparAttnPlanExplain().
  virtual const char* name() const = 0;

 private:
  Exec& runner_;
};

/// Sets a partial result in memory to no keys.
void clear(Exec& exec, const Partial& partial);

/// The block kernel for work on `exec`. Throws Error (InvalidUsage) for a shape that no kernel supports.
std::unique_ptr<Block> makeBlock(Exec& exec, const BlockShape& shape);

}  // namespace seqpar::attn
