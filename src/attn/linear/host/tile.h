// Copies rows of a caller's tensor to and from dense fp32.
#pragma once

#include <cstddef>

#include "attn/exec/tensor.h"

namespace seqpar::attn::linear {

/// to[count][dim] = tokens first ... first + count - 1 of one head.
void loadTile(const Tensor& from, size_t batch, size_t first, size_t count, size_t head, float* to);

/// Likewise factor times the values.
void loadScaledTile(const Tensor& from, size_t batch, size_t first, size_t count, size_t head, float factor, float* to);
/// Likewise exp(values).
void loadExponentials(const Tensor& from, size_t batch, size_t first, size_t count, size_t head, float* to);

/// Lets the thread's next products load the rows into the caches, for a later loadTile(), if hardware does not.
void announceTile(const Tensor& from, size_t batch, size_t first, size_t count, size_t head);

/// The reverse copy, rounded to the tensor's type.
void storeTile(const float* from, const Tensor& to, size_t batch, size_t first, size_t count, size_t head);

}  // namespace seqpar::attn::linear
