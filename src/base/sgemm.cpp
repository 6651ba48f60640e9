#include "base/sgemm.h"

#include "base/sgemm_kernels.h"

namespace seqpar {

const SgemmKernel& sgemmKernel(Isa isa) {
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

namespace {

const SgemmKernel& bestKernel() {
  static const SgemmKernel& kernel = sgemmKernel(bestIsa());
  return kernel;
}

}  // namespace

void multiply(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC) {
  bestKernel().multiply(m, n, k, a, b, accumulate, c, strideC, &aheadOfThread());
}

void pack(size_t k, size_t n, Factor b, float* to) {
  bestKernel().pack(k, n, b, to);
}

void multiplyPacked(size_t m, size_t n, size_t k, Factor a, Packed b, bool accumulate, float* c, size_t strideC) {
  bestKernel().multiplyPacked(m, n, k, a, b, accumulate, c, strideC, &aheadOfThread());
}

}  // namespace seqpar
