// What rows of a view can be read by loadVec() and storeVec().
#pragma once

#include <cstdint>

#include "kernels/attn/softmax/args.h"
#include "kernels/vec.cuh"

namespace seqpar::attn::softmax {

/// Whether rows of `dim` numbers of a view can be read `width`, four or eight, at a time.
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
