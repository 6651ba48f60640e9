#include "channel_cuda.h"
#include "device/cuda.h"
#include "probe.h"

namespace seqpar {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads, 2) probeKernel(const __grid_constant__ PeerView view, ProbeTimes* times) {
  __shared__ LanePositions positions;
  const CtaGroup group;
  ProbeTimes mine;
  const bool ok = ProbeLane<CudaMemory, CtaGroup>(view, static_cast<int>(blockIdx.x), group, positions).run(mine);
  if (ok && threadIdx.x == 0) times[blockIdx.x] = mine;
}

}  // namespace

void launchProbe(const PeerView& view, ProbeTimes* times, void* stream) {
  probeKernel<<<view.lanes, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(view, times);
  checkCuda(cudaGetLastError(), "launching a probe");
}

}  // namespace seqpar
