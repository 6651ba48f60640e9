#include "common/cuda.h"
#include "gpu_combine.h"
#include "kernels/fifo_cuda.cuh"
#include "kernels/scan/matrix_panel.h"
#include "kernels/scan/matrix_plan.h"
#include "kernels/scan/matrix_tensor.cuh"

namespace seqpar::perf {
namespace {

constexpr int kSize = 128;

/// One panel of one head per CTA: applies the maps before this rank's to zeros, then this rank's map.
__global__ void __launch_bounds__(kTensorThreads)
    combineExact(const MapList maps, const __grid_constant__ MatrixScan scan) {
  extern __shared__ SplitPair shared[];
  const CtaGroup group;
  const PanelGroup at = scan.at(static_cast<int>(blockIdx.x));
  const int fragment = group.thread();
  float x[8] = {};
  CudaExactProduct<kSize, Matrices::Rows> product;
  for (int map = 0; map <= maps.count; ++map) {
    if (map == maps.count) {
      storeFragment<FastPanels>(CallerPanel<void*>(scan.prefix, scan, at.head, at.first), PanelFragment(fragment), x);
      if (scan.total == nullptr) return;
    }
    float s[8];
    loadFragment<FastPanels>(CallerPanel<const void*>(maps.s + map * maps.sStride, scan, at.head, at.first),
                             PanelFragment(fragment), s);
    if (map > 0) {
      MatrixScan one = scan;
      one.transition = maps.a + map * maps.aStride;
      product.load(transitionOf(one, at.head));
      product.endStep();
      const bool needsExact = group.any(splitFragment(shared, PanelFragment(fragment), x));
      product.multiply(fragment, shared, needsExact, x);
      group.sync();
    }
    for (int i = 0; i < 8; ++i) x[i] = map > 0 ? x[i] + s[i] : s[i];
  }
  storeFragment<FastPanels>(CallerPanel<void*>(scan.total, scan, at.head, at.first), PanelFragment(fragment), x);
}

}  // namespace

bool canCombineExactly(const AffineMap& map) {
  return map.op == seqparScanMatrix && !map.transposed && map.shape.dk == kSize && map.shape.dv == kSize;
}

void launchExactCombine(const AffineMap& map, const MapList& maps, float* out, float* total, void* stream) {
  MatrixScan scan;
  scan.prefix = out;
  scan.total = total;
  scan.heads = static_cast<int>(map.shape.heads);
  scan.dk = scan.dv = kSize;
  scan.paired = true;
  constexpr size_t kShared = pairsOf(kSize) * sizeof(SplitPair);
  combineExact<<<static_cast<unsigned>(scan.groups()), kTensorThreads, kShared, static_cast<cudaStream_t>(stream)>>>(
      maps, scan);
  checkCuda(cudaGetLastError(), "combineExact");
}

}  // namespace seqpar::perf
