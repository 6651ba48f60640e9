// Instructions of kernels/arch/mbarrier.h and tma.h on an emulated CTA: copies of boxes complete as late as allowed.
#pragma once

#include <cstdint>

/// The tests' tensor map, instead of the driver's: [batch][token][head][column], strides in bytes.
struct CUtensorMap {
  char* data;
  int numberBytes, columns, boxColumns, boxTokens;
  int64_t heads, tokens, batches;
  int64_t headStride, tokenStride, batchStride;
  bool swizzled;
};

namespace seqpar::ptx {

void mbarrierInit(uint32_t barrier, int count);
inline void fenceMbarrierInit() {}
void mbarrierArrive(uint32_t barrier);
void mbarrierArriveExpectTx(uint32_t barrier, int bytes);
void mbarrierWaitParity(uint32_t barrier, int parity);

void cpAsyncBulkLoad(void* to, const void* from, int bytes, uint32_t barrier);
void tmaLoad(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head, int token, int batch);
inline void cpAsyncBulkPrefetch(const void*, int) {}
inline void tmaPrefetch(const CUtensorMap&, int, int, int, int) {}
void tmaStore(const CUtensorMap& map, uint32_t from, int column, int head, int token, int batch);

}  // namespace seqpar::ptx
