// Block kernels: softmax attention of some queries to some keys, forward and backward, on one rank. A backend a file:
// host.cpp; the caller's kernels; CUDA. Algorithms see this interface only.
#pragma once

#include <memory>
#include <span>

#include "attn/block/rectangles.h"
#include "attn/exec/exec.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn {

/// What all calls of a block have in common. Query head h uses key head (h + phase) / group.
struct BlockShape {
  int64_t batch = 1, heads = 1, kvHeads = 1, headDim = 1, valueDim = 1;
  int64_t group = 1, phase = 0;
  int64_t rowHeads = 0;  ///< that a token of q, out, dOut and dq has in memory, of which the block sees some; 0: heads
  seqparDataType_t type = seqparFloat32;  ///< of q, k, v, out, dOut
  float scale = 1, softcap = 0;
  bool training = true, deterministic = false;
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;  ///< the caller's; functions NULL: the library's
};

/// Attention to some of the keys: out [batch][rows][heads][valueDim], each row normalized over the keys that it has
/// seen, and the logarithm of their sum of exponentials. Where lse is -inf the row has seen nothing and `out` is not
/// looked at. Two of them are merged by lse' = log(exp(lse_a) + exp(lse_b)), out' = exp(lse_a - lse') out_a + exp(lse_b
/// - lse') out_b.
struct Partial {
  Tensor out;  ///< fp32
  Rows lse;
};

struct BlockInputs {
  Tensor q, k, v;
};

/// Of the whole softmax, over the keys of all ranks.
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

/// Which of them.
enum class GradientOf { Queries, Keys, Values };

/// Which passes calls will come for.
struct Passes {
  bool forward = true, backward = true;
};

/// A tensor that joins a sum from the sum's token `first` on.
struct Addend {
  Tensor tensor;
  int64_t first = 0;
};

/// All functions enqueue on the Exec's main stream. Between prepare() and the end nothing is allocated. Results are the
/// same at every call: sums are made in a fixed order, except where a GPU's backward may add in any order (shape's
/// `deterministic` forbids it).
class Block {
 public:
  virtual ~Block() = default;

  /// Tells, before carve(), that calls will come for these rectangles of shards of so many tokens.
  virtual void expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes = {}) = 0;
  /// Takes scratch memory. Runs as Arena says.
  virtual void carve(Arena& arena) = 0;
  /// Builds kernels for what was expected. Throws Error.
  virtual void prepare() = 0;

  /// True: backward() reads `out` and makes delta itself, so that algorithms that move queries must move `out` too.
  virtual bool needsOut() const = 0;

  /// A promise, before carve(): between clear() and finish() nobody but the block reads or writes partials and sums of
  /// gradients. The block may then keep what it has computed elsewhere, and merge or add it in finish() only.
  virtual void keepHere() {}

  /// Makes `partial` one that has seen nothing. `out` and `lse` (data null: not known) are what finish() will be given
  /// and may be written from now on, so that what one kernel computes whole need not be copied.
  virtual void clear(const Partial& partial, const Tensor& out, const Rows& lse) = 0;
  void clear(const Partial& partial) { clear(partial, {}, {}); }
  /// Merges what the rectangles' queries find at their keys into `into`. Rectangles' rows and columns count from the
  /// first token of the tensors.
  virtual void forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) = 0;
  /// Merges `from`, whose `out` may have any type, into `into`.
  virtual void merge(const Partial& into, const Partial& from) = 0;
  /// out = partial.out, rounded, 0 for rows that have seen nothing; lse (data null: not wanted) = partial.lse. `sinks`
  /// [heads] (null: none) join the denominator first.
  virtual void finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) = 0;

  /// delta = rowsum(dOut * out). Not needed with needsOut(), except for sinks.
  virtual void delta(const Tensor& out, const Tensor& dOut, const Rows& delta) = 0;
  /// Adds the rectangles' share to `into`.
  virtual void backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                        const BlockGradients& into) = 0;
  /// A sum of gradients, one of BlockGradients' tensors: sum = 0; out = sum + addends, rounded once, after which the
  /// sum means nothing; total += sum; and sum as what lies in memory, which others may read and write then. An addend
  /// may be a sum too, which means nothing after that either. clear()'s `out` is as above.
  virtual void clear(GradientOf which, const Tensor& sum, const Tensor& out) = 0;
  void clear(GradientOf which, const Tensor& sum) { clear(which, sum, {}); }
  virtual void finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) = 0;
  void finish(const Tensor& sum, const Tensor& out) { finish(sum, {}, out); }
  virtual void addTo(const Tensor& total, const Tensor& sum) = 0;
  virtual void settle(const Tensor& sum) = 0;
  /// dSinks[heads] = -sum over batch and rows of exp(sink - lse) delta.
  virtual void sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) = 0;

  /// For seqparAttnPlanExplain(): what computes.
  virtual const char* name() const = 0;
};

/// Block::finish() for blocks whose sums lie in memory always.
void finishInMemory(Exec& exec, const Tensor& sum, std::span<const Addend> addends, const Tensor& out);

/// The block kernel for work on `exec`. Throws Error (InvalidUsage) for a shape that no kernel can do.
std::unique_ptr<Block> makeBlock(Exec& exec, const BlockShape& shape);

}  // namespace seqpar::attn
