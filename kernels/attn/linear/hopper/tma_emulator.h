// A CPU in the place of hopper/tma.cuh: barriers of transfers, and boxes of tensors, which come as late as they may.
#pragma once

#include <cstdint>

#include "kernels/attn/linear/cuda_emulator.h"

/// What tests make of a tensor in the place of the driver's map: [batch][token][head][column], strides in bytes.
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
