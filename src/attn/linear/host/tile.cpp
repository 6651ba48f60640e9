#include "attn/linear/host/tile.h"

#include "attn/linear/host/vector.h"
#include "base/convert.h"
#include "base/sgemm.h"

namespace seqpar::attn::linear {
namespace {

/// Whether consecutive rows of this tensor are contiguous, so that one copy moves them.
bool adjacent(const Tensor& tensor) {
  return tensor.tokenStride == tensor.dim;
}

int64_t signedOf(size_t value) {
  return static_cast<int64_t>(value);
}

/// load(row of the tensor, row of the tile, values) for each row, or once for all.
template <typename Load>
void forRows(const Tensor& from, size_t batch, size_t first, size_t count, size_t head, float* to, const Load& load) {
  const size_t dim = static_cast<size_t>(from.dim);
  if (adjacent(from)) return load(from.at(signedOf(batch), signedOf(first), signedOf(head)), to, count * dim);
  for (size_t t = 0; t < count; ++t) {
    load(from.at(signedOf(batch), signedOf(first + t), signedOf(head)), to + t * dim, dim);
  }
}

/// The row itself if it is fp32, which saves a copy; else `into`, converted.
const float* asFloats(const void* row, seqparDataType_t type, float* into, size_t values) {
  if (type == seqparFloat32) return static_cast<const float*>(row);
  toFloat(row, type, into, values);
  return into;
}

}  // namespace

void loadTile(const Tensor& from, size_t batch, size_t first, size_t count, size_t head, float* to) {
  forRows(from, batch, first, count, head, to,
          [&](const void* row, float* into, size_t values) { toFloat(row, from.type, into, values); });
}

void loadScaledTile(const Tensor& from, size_t batch, size_t first, size_t count, size_t head, float factor,
                    float* to) {
  forRows(from, batch, first, count, head, to, [&](const void* row, float* into, size_t values) {
    scaleTo(factor, asFloats(row, from.type, into, values), values, into);
  });
}

void loadExponentials(const Tensor& from, size_t batch, size_t first, size_t count, size_t head, float* to) {
  if (from.type == seqparFloat32 && count > 1) {
    const auto* const rows = reinterpret_cast<const float*>(from.at(signedOf(batch), signedOf(first), signedOf(head)));
    return exponentiateRows(rows, static_cast<size_t>(from.tokenStride), count, static_cast<size_t>(from.dim), to);
  }
  forRows(from, batch, first, count, head, to, [&](const void* row, float* into, size_t values) {
    exponentiate(asFloats(row, from.type, into, values), values, into);
  });
}

void announceTile(const Tensor& from, size_t batch, size_t first, size_t count, size_t head) {
  constexpr size_t kFar = 8;  // rows that are closer together are prefetched by hardware as fast
  const size_t element = bytesOf(from.type);
  const size_t stride = static_cast<size_t>(from.tokenStride) * element, row = static_cast<size_t>(from.dim) * element;
  if (from.data == nullptr || stride < kFar * row) return;
  aheadOfThread().add({from.at(signedOf(batch), signedOf(first), signedOf(head)), stride, row, count});
}

void storeTile(const float* from, const Tensor& to, size_t batch, size_t first, size_t count, size_t head) {
  const size_t dim = static_cast<size_t>(to.dim);
  if (adjacent(to)) {
    fromFloat(from, to.at(signedOf(batch), signedOf(first), signedOf(head)), to.type, count * dim);
    return;
  }
  for (size_t t = 0; t < count; ++t) {
    fromFloat(from + t * dim, to.at(signedOf(batch), signedOf(first + t), signedOf(head)), to.type, dim);
  }
}

}  // namespace seqpar::attn::linear
