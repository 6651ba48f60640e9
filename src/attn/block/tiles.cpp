#include "attn/block/tiles.h"

#include <algorithm>

#include "base/error.h"

namespace seqpar::attn {
namespace {

seqparAttnTensor_t plain(const Tensor& tensor) {
  return {tensor.data, tensor.batchStride, tensor.tokenStride, tensor.headStride};
}

void check(int result, const char* which) {
  if (result != 0) {
    fail(seqparSystemError, "attention plan: kernel->", which, " returned ", result, ", expected 0");
  }
}

}  // namespace

TiledBlock::TiledBlock(Exec& exec, const BlockShape& shape, std::unique_ptr<Block> base)
    : Block(exec), exec_(exec), shape_(shape), base_(std::move(base)) {}

void TiledBlock::expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes) {
  base_->expect(rectangles, rows, columns, passes);
  const auto count = static_cast<int64_t>(rectangles.size());
  if (passes.forward) calls_.forward += count;
  if (passes.backward && shape_.training) calls_.backward += count;
  for (const auto& r : rectangles) {
    rows_ = std::max(rows_, r.rows);
    columns_ = std::max(columns_, r.columns);
  }
}

void TiledBlock::carve(Arena& arena) {
  base_->carve(arena);
  out_ = arena.tensor(shape_.type, shape_.batch, rows_, shape_.heads, shape_.valueDim);
  lse_ = arena.rows(shape_.batch, shape_.heads, rows_);
  if (!shape_.training) return;
  dq_ = arena.tensor(shape_.type, shape_.batch, rows_, shape_.heads, shape_.headDim);
  dk_ = arena.tensor(shape_.type, shape_.batch, columns_, shape_.kvHeads, shape_.headDim);
  dv_ = arena.tensor(shape_.type, shape_.batch, columns_, shape_.kvHeads, shape_.valueDim);
}

template <typename Body>
void TiledBlock::eachGroup(Body body) const {
  if (shape_.phase == 0 && shape_.heads == shape_.kvHeads * shape_.group) {
    return body(int64_t{0}, shape_.heads, int64_t{0}, shape_.kvHeads);
  }
  for (int64_t kv = 0; kv < shape_.kvHeads; ++kv) {
    const int64_t first = std::max<int64_t>(0, kv * shape_.group - shape_.phase);
    const int64_t end = std::min(shape_.heads, (kv + 1) * shape_.group - shape_.phase);
    if (first < end) body(first, end - first, kv, int64_t{1});
  }
}

seqparAttnTile_t TiledBlock::tileOf(const Rectangle& r, int64_t heads, int64_t kvHeads) const {
  seqparAttnTile_t tile{};
  tile.size = sizeof(tile);
  tile.magic = SEQPAR_STRUCT_MAGIC;
  tile.version = SEQPAR_VERSION_CODE;
  tile.batch = shape_.batch;
  tile.rows = r.rows;
  tile.columns = r.columns;
  tile.heads = heads;
  tile.kvHeads = kvHeads;
  tile.headDim = shape_.headDim;
  tile.valueDim = shape_.valueDim;
  tile.lower = r.lower;
  tile.upper = r.upper;
  tile.dataType = shape_.type;
  tile.scale = shape_.scale;
  tile.softcap = shape_.softcap;
  return tile;
}

void TiledBlock::forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) {
  for (const auto& r : rectangles) {
    eachGroup([&](int64_t head, int64_t heads, int64_t kvHead, int64_t kvHeads) {
      const Partial part{out_.rows(0, r.rows).headsFrom(head, heads), lse_.rows(0, r.rows).headsFrom(head, heads)};
      auto tile = tileOf(r, heads, kvHeads);
      tile.q = plain(in.q.rows(r.row, r.rows).headsFrom(head, heads));
      tile.k = plain(in.k.rows(r.column, r.columns).headsFrom(kvHead, kvHeads));
      tile.v = plain(in.v.rows(r.column, r.columns).headsFrom(kvHead, kvHeads));
      tile.out = plain(part.out);
      tile.lse = part.lse.data;
      tile.lseBatchStride = part.lse.batchStride;
      tile.lseHeadStride = part.lse.headStride;
      check(shape_.kernel.forward(shape_.kernel.self, &tile, exec_.main()), "forward");
    });
    base_->merge({into.out.rows(r.row, r.rows), into.lse.rows(r.row, r.rows)},
                 {out_.rows(0, r.rows), lse_.rows(0, r.rows)});
  }
}

void TiledBlock::backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                          const BlockGradients& into) {
  for (const auto& r : rectangles) {
    const Tensor dq = dq_.rows(0, r.rows), dk = dk_.rows(0, r.columns), dv = dv_.rows(0, r.columns);
    eachGroup([&](int64_t head, int64_t heads, int64_t kvHead, int64_t kvHeads) {
      const Rows lse = in.lse.rows(r.row, r.rows).headsFrom(head, heads);
      auto tile = tileOf(r, heads, kvHeads);
      tile.q = plain(in.q.rows(r.row, r.rows).headsFrom(head, heads));
      tile.k = plain(in.k.rows(r.column, r.columns).headsFrom(kvHead, kvHeads));
      tile.v = plain(in.v.rows(r.column, r.columns).headsFrom(kvHead, kvHeads));
      tile.out = plain(in.out.rows(r.row, r.rows).headsFrom(head, heads));
      tile.dOut = plain(in.dOut.rows(r.row, r.rows).headsFrom(head, heads));
      tile.lse = lse.data;
      tile.lseBatchStride = lse.batchStride;
      tile.lseHeadStride = lse.headStride;
      tile.dq = plain(dq.headsFrom(head, heads));
      tile.dk = plain(dk.headsFrom(kvHead, kvHeads));
      tile.dv = plain(dv.headsFrom(kvHead, kvHeads));
      check(shape_.kernel.backward(shape_.kernel.self, &tile, exec_.main()), "backward");
    });
    exec_.add(into.dq.rows(r.row, r.rows), dq);
    exec_.add(into.dk.rows(r.column, r.columns), dk);
    exec_.add(into.dv.rows(r.column, r.columns), dv);
  }
}

}  // namespace seqpar::attn
