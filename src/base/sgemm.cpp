#include "base/sgemm.h"

#include "base/sgemm_kernels.h"

namespace seqpar {

SgemmKernel sgemmKernel(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return kSgemmAvx512;
  if (isa == Isa::Avx2) return kSgemmAvx2;
#endif
  static_cast<void>(isa);
  return kSgemmPortable;
}

void Ahead::clear() {
  used = entry = row = at = 0;
}

void Ahead::add(const Rows& rows) {
  if (used == kMost || rows.bytes == 0 || rows.count == 0) return;
  list[used++] = rows;
}

Ahead& aheadOfThread() {
  thread_local Ahead ahead;
  return ahead;
}

void multiply(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC) {
  static const SgemmKernel kernel = sgemmKernel(bestIsa());
  kernel(m, n, k, a, b, accumulate, c, strideC, &aheadOfThread());
}

}  // namespace seqpar
