#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda.h"
#include "merge/scale.h"
#include "seqpar/types.h"

namespace seqpar::perf {
namespace {

constexpr unsigned kThreads = 256, kDim = 128;

/// A thread scales 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads) scaleKernel(const Scale s) {
  constexpr unsigned kEach = 16 / sizeof(T), kParts = kDim / kEach;
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  const unsigned result = index / kParts, part = index % kParts;
  if (result >= s.results) return;
  float most = -INFINITY;
  for (int r = 0; r < s.ranks; ++r) most = fmaxf(most, s.lseOfAll[static_cast<size_t>(r) * s.results + result]);
  float sum = 0;
  for (int r = 0; r < s.ranks; ++r) sum += __expf(s.lseOfAll[static_cast<size_t>(r) * s.results + result] - most);
  const float own = s.lseOfAll[static_cast<size_t>(s.rank) * s.results + result];
  const float factor = own == -INFINITY ? 0.f : __expf(own - most) / sum;
  if (part == 0) s.lseMerged[result] = most == -INFINITY ? most : most + __logf(sum);
  union {
    uint4 all;
    T at[kEach];
  } values;
  values.all = static_cast<const uint4*>(s.out)[index];
  for (T& value : values.at) value = static_cast<T>(own == -INFINITY ? 0.f : factor * static_cast<float>(value));
  unsigned into = result;
  if (s.byHeads) {
    const unsigned each = s.heads / s.ranks, row = result / s.heads, head = result % s.heads;
    into = (head / each * (s.results / s.heads) + row) * each + head % each;
  }
  static_cast<uint4*>(s.scaled)[static_cast<size_t>(into) * kParts + part] = values.all;
}

template <class T>
void launch(const Scale& s, cudaStream_t stream) {
  const unsigned threads = s.results * (kDim * sizeof(T) / 16);
  scaleKernel<T><<<(threads + kThreads - 1) / kThreads, kThreads, 0, stream>>>(s);
}

}  // namespace

void launchScale(const Scale& scale, cudaStream_t stream) {
  if (scale.type == seqparFloat32) launch<float>(scale, stream);
  if (scale.type == seqparFloat16) launch<__half>(scale, stream);
  if (scale.type == seqparBfloat16) launch<__nv_bfloat16>(scale, stream);
  checkCuda(cudaGetLastError(), "scaleKernel");
}

}  // namespace seqpar::perf
