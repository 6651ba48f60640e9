// The arithmetic of the NCCL peers: fp32 maps x -> A x + S applied one after the other, in one kernel.
#pragma once

#include <cstddef>

#include "affine_map.h"

namespace seqpar::perf {

/// Several maps whose parts lie at equal distances, in elements, which are negative where the order is from the last.
struct MapList {
  const float* a = nullptr;  ///< of the first map; null for SUM
  const float* s = nullptr;
  std::ptrdiff_t aStride = 0, sStride = 0;
  int count = 0;
};

/// Enqueues: x_0 = `start`, or zeros if null; out = x_count of the units [begin, end) of `map`; `total`, unless null,
/// gets one map more. Arrays are whole, on the device, and apart from each other. MATRIX with dk a multiple of 16 up to
/// 128 and dv a multiple of 32 is multiplied on tensor cores, as tf32.
void launchCombine(const AffineMap& map, const MapList& maps, const float* start, float* out, float* total,
                   size_t begin, size_t end, void* stream);

/// The same from zeros and for all units, by the product of the library's own MATRIX scans, near the accuracy of fp32:
/// for maps that canCombineExactly() is true of.
void launchExactCombine(const AffineMap& map, const MapList& maps, float* out, float* total, void* stream);
bool canCombineExactly(const AffineMap& map);

}  // namespace seqpar::perf
