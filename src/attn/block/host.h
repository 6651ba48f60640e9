// Block kernel on hosts: FlashAttention's loops (arXiv 2205.14135, Algorithm 1; 2307.08691, Algorithm 2 for backward)
// over matrix products: base/sgemm.h, in fp32, and bf16_kernels.h for bf16 inputs where the processor supports them.
#pragma once

#include <vector>

#include "attn/block/bf16_kernels.h"
#include "attn/block/block.h"
#include "attn/block/host_tiles.h"
#include "attn/exec/host.h"

namespace seqpar::attn {

class HostBlock final : public Block {
 public:
  /// `kernels`: for bf16 inputs; null: bf16 inputs are computed in fp32.
  HostBlock(HostExec& exec, const BlockShape& shape, const Bf16Kernels* kernels = bestBf16Kernels())
      : Block(exec), exec_(exec), shape_(shape), bf16Kernels_(kernels) {}

  void expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes) override;
  KernelCalls calls() const override { return calls_; }
  void carve(Arena& arena) override;
  void prepare() override {}
  bool needsOut() const override { return false; }
  /// fp32 results accumulate in the outputs; bf16 results that are merged once are written there.
  std::unique_ptr<Accumulator> accumulate(const Partial& partial, const Tensor& out, const Rows& lse) override;
  std::unique_ptr<GradientAccumulator> accumulate(GradientOf which, const Tensor& sum, const Tensor& out) override;
  void forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) override;
  void merge(const Partial& into, const Partial& from) override;
  void finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) override;
  void delta(const Tensor& out, const Tensor& dOut, const Rows& delta) override;
  using Block::backward;
  void backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                const BlockGradients& into) override;
  void sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) override;
  const char* name() const override { return "host, tiles over the built-in sgemm"; }

 private:
  /// Buffers of one thread for bf16 inputs.
  struct Bf16Scratch {
    uint16_t *rows, *k, *v, *lastKeys;  ///< v is transposed
    uint32_t *q, *weights;              ///< pairs of q^T and weights^T; see Bf16Kernels::multiply()
    float *scores, *out;                ///< transposed; AMX has the weights of two tiles and the scores of two blocks
    // Of backward passes. There v is not transposed, `weights` are gradients of scores, and `out` is dq.
    uint16_t *kTransposed, *weightRows, *gradientRows;
    uint32_t *dOut, *qPairs, *dOutPairs;  ///< pairs of dOut^T, q and dOut
    float *products, *dk, *dv;
  };
  /// Buffers of one thread.
  struct Scratch {
    float *q, *k, *v, *scores, *out, *packedKeys, *packedValues;
    // Of backward passes. There packedKeys and packedValues are those of the transposes.
    float *dOut, *gradients, *packedKeyRows, *packedQ, *packedDOut, *dk, *dv;
    Bf16Scratch bf16;
  };

  /// Calls body(b, h, token) for all rows of queries, distributed over the threads.
  void eachRow(int64_t tokens, const std::function<void(int64_t b, int64_t h, int64_t token, int thread)>& body);
  void forwardTask(const BlockInputs& in, const Rectangle& r, const Partial& into, int64_t b, int64_t kvHead,
                   int64_t firstRow, int64_t rows, Scratch& scratch);
  /// Merges factor * row, normalized with `rowLse`, into a row of `into`; `row` is undefined afterwards.
  void mergeRow(const Partial& into, int64_t b, int64_t h, int64_t token, float rowLse, float* row, float factor) const;

  bool usesBf16(const BlockInputs& in) const;
  bool usesBf16(const BlockGradientInputs& in) const;
  void carveBf16(Arena& arena, Bf16Scratch& scratch) const;
  void loadBf16(const BlockInputs& in, int64_t b, int64_t token, int64_t count, int64_t kvHead,
                Bf16Scratch& scratch) const;
  void loadTilesBf16(const BlockInputs& in, int64_t b, int64_t token, int64_t count, int64_t kvHead,
                     Bf16Scratch& scratch) const;
  /// out^T = or += v^T weights of a tile.
  void addValuesBf16(const TileRange& keys, size_t queries, bool first, Bf16Scratch& scratch) const;
  void forwardTilesBf16(const Rectangle& r, int64_t row, int64_t count, TileRange seen, int64_t chunk, float* most,
                        float* sum, Bf16Scratch& scratch) const;
  void addTilesBf16(const Rectangle& r, int64_t row, int64_t count, TileRange seen, int64_t chunk, float* most,
                    float* sum, Bf16Scratch& scratch) const;
  void forwardBf16(const BlockInputs& in, const Rectangle& r, const Partial& into, int64_t b, int64_t kvHead,
                   int64_t firstRow, int64_t rows, Bf16Scratch& scratch) const;

  /// The results of a part of a backward pass: gradients of its rows' queries, of its columns' keys and values, or
  /// both.
  struct BackwardPart {
    int64_t firstRow, endRow, firstColumn, endColumn;
    bool queries, keys;
  };
  void backwardTask(const BlockGradientInputs& in, const Rectangle& r, const BlockGradients& into, int64_t b,
                    int64_t kvHead, const BackwardPart& part, Scratch& scratch);
  /// A tile's operands of products and its sums of gradients, for one thread.
  struct PackedTile {
    float *keys, *values, *keyRows;  ///< k^T, v^T and scaled k
    float *dk, *dv;
  };
  PackedTile packedTile(const Scratch& scratch, int64_t number) const;
  void packTile(const BlockGradientInputs& in, const Rectangle& r, int64_t b, int64_t kvHead, TileRange keys,
                const BackwardPart& part, const PackedTile& to, Scratch& scratch) const;
  struct Row {
    int64_t batch, head, token;
  };
  /// Scores and gradients of weights -> weights and gradients of scores. `mine`: what the row sees of the tile.
  void softmaxGradients(const BlockGradientInputs& in, const Row& row, TileRange mine, TileRange tile, float* scores,
                        float* gradients) const;
  void backwardBf16(const BlockGradientInputs& in, const Rectangle& r, const BlockGradients& into, int64_t b,
                    int64_t kvHead, const BackwardPart& part, Bf16Scratch& scratch) const;
  void loadRowsBf16(const BlockGradientInputs& in, int64_t b, int64_t h, int64_t token, int64_t count,
                    Bf16Scratch& scratch) const;
  void loadKeysBf16(const BlockGradientInputs& in, int64_t b, int64_t token, int64_t count, int64_t kvHead,
                    Bf16Scratch& scratch) const;
  /// The tiles of keys that a tile of queries sees; lse has base 2.
  void addGradientTilesBf16(const Rectangle& r, const BackwardPart& part, int64_t row, int64_t count, TileRange seen,
                            int64_t chunk, const float* lse, const float* delta, Bf16Scratch& scratch) const;
  void backwardTilesBf16(const Rectangle& r, const BackwardPart& part, int64_t row, int64_t count, TileRange seen,
                         int64_t chunk, const float* lse, const float* delta, Bf16Scratch& scratch) const;
  void addGradientTileBf16(const TileRange& keys, const BackwardPart& part, bool first, const GradientTile& tile,
                           Bf16Scratch& scratch) const;
  /// Backward pass with fewer key heads than threads.
  void backwardByParts(const BlockGradientInputs& in, const Rectangle& r, const BlockGradients& into);

  HostExec& exec_;
  BlockShape shape_;
  KernelCalls calls_;
  const Bf16Kernels* bf16Kernels_;
  bool mergedOnce_ = false;       ///< each row of an accumulator's results is
  std::vector<Scratch> scratch_;  ///< [threads]
};

}  // namespace seqpar::attn
