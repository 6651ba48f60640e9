// CPU emulation of hopper/tma.cuh: mbarriers, and copies of boxes, which complete as late as allowed.
#pragma once

#include <cstdint>

#include "kernels/attn/linear/cuda_emulator.h"

/// The tests' tensor map, instead of the driver's: [batch][token][head][column], strides in bytes.
struct CUtensorMap {
  char* data;
  int numberBytes, columns, boxColumns, boxTokens;
  int64_t heads, tokens, batches;
  int64_t headStride, tokenStride, batchStride;
  bool swizzled;
};

namespace seqpar::attn::hopper {

void initBarrier(uint32_t barrier, int count);
inline void fenceBarrierInit() {}
void arrive(uint32_t barrier);
void arriveExpecting(uint32_t barrier, int bytes);
void waitBarrier(uint32_t barrier, int parity);
void syncNamed(int id, int threads);
bool anyNamed(int id, int threads, bool mine);

void loadBox(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head, int token, int batch);
inline void prefetchBox(const CUtensorMap&, int, int, int, int) {}
void storeBox(const CUtensorMap& map, uint32_t from, int column, int head, int token, int batch);

void storeMatrices(uint32_t address, const uint32_t (&words)[4]);
void storeTransposed(uint32_t address, const uint32_t (&words)[4]);

}  // namespace seqpar::attn::hopper
