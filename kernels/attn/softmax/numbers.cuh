// What rows of a view can be read by loadVec() and storeVec().
#pragma once

#include <cstdint>

#include "kernels/attn/softmax/args.h"
#include "kernels/vec.cuh"

namespace seqpar::attn::softmax {

/// Whether rows of `dim` numbers of a view can be read four at a time.
inline bool byFours(const View& view, int64_t dim) {
  if (view.data == nullptr) return true;
  const auto bytes = view.type == seqparFloat32 ? 16U : 8U;
  return dim % 4 == 0 && view.batch % 4 == 0 && view.token % 4 == 0 && view.head % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
}

}  // namespace seqpar::attn::softmax
