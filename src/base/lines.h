// Copies of whole cache lines with the widest vectors of the processor. The number of stores in flight is limited, so
// stores of 64 bytes wait for four times as many lines at once as stores of 16 bytes.
#pragma once

#include <cstddef>

#include "base/simd.h"

namespace seqpar {

inline constexpr size_t kCopiedLine = 64;

struct LineCopies {
  using Copy = void (*)(std::byte* to, const std::byte* from, size_t lines);
  Copy cached;    ///< ordinary stores, at any address
  Copy streamed;  ///< stores past the caches, each line at once; `to` is aligned to a line
};

/// The copies of an Isa that this processor supports. Other processors than x86 have no streamed stores.
const LineCopies& lineCopies(Isa isa);
/// The copies of bestIsa().
const LineCopies& lineCopies();

}  // namespace seqpar
