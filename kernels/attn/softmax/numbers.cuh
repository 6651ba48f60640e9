// Vector widths that loadVec() and storeVec() support for the rows of a view.
#pragma once

#include <cstdint>

#include "kernels/attn/softmax/args.h"
#include "kernels/vec.cuh"

namespace seqpar::attn::softmax {

/// Whether rows of `dim` elements of a view can be accessed `width`, four or eight, elements at a time.
inline bool by(int width, const View& view, int64_t dim) {
  if (view.data == nullptr) return true;
  const unsigned bytes = view.type == seqparFloat32 || width == 8 ? 16 : 8;
  return dim % width == 0 && view.batch % width == 0 && view.token % width == 0 && view.head % width == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
}

inline bool byFours(const View& view, int64_t dim) {
  return by(4, view, dim);
}

}  // namespace seqpar::attn::softmax
