// The arithmetic of the NCCL peers: fp32 maps x -> A x + S applied one after the other, in one kernel.
#pragma once

#include <cstddef>

#include "affine_map.h"

namespace seqpar::perf {

/// Several maps with equally spaced parts. Distances are in elements, negative if the order starts with the last map.
struct MapList {
  const float* a = nullptr;  ///< of the first map; null for SUM
  const float* s = nullptr;
  std::ptrdiff_t aStride = 0, sStride = 0;
  int count = 0;
};

/// Enqueues: x_0 = `start`, or zeros if null; out = x_count for a range of units of `map`, excluding the last bound; a
/// non-null `total` applies one more map. Arrays are whole, on the device, and do not overlap. MATRIX with dk a
/// multiple of 16 up to 128 and dv a multiple of 32 is multiplied on tensor cores, as tf32.
void launchCombine(const AffineMap& map, const MapList& maps, const float* start, float* out, float* total,
                   size_t begin, size_t end, void* stream);

/// launchCombine() from zeros for all units, with the product of the library's MATRIX scans, near the accuracy of fp32:
/// for maps that canCombineExactly() accepts.
void launchExactCombine(const AffineMap& map, const MapList& maps, float* out, float* total, void* stream);
bool canCombineExactly(const AffineMap& map);

}  // namespace seqpar::perf
