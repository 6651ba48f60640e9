// Measures the FIFOs between ring neighbors (probe_program.h).
//
// Work      CTA l measures channel l; tokens: one CTA
// Roles     all threads alike; the first one stores times
// Tiles     rows of packets
// Smem      ChannelPositions
// Barriers  __syncthreads() at the ends of steps
// Overlap   none; no other traffic may run
#include "kernels/fifo_cuda.cuh"
#include "kernels/launch.h"
#include "kernels/scan/probe.h"

namespace seqpar {
namespace {

constexpr int kThreads = 512;

template <bool kTokens>
__global__ void __launch_bounds__(kThreads, 2) probeKernel(const __grid_constant__ PeerView view, ProbeTimes* times) {
  __shared__ ChannelPositions positions;
  const CtaGroup group;
  ProbeProgram<CudaMemory, CtaGroup> channel(view, static_cast<int>(blockIdx.x), group, positions);
  ProbeTimes mine;
  const bool ok = kTokens ? channel.runTokens(mine) : channel.runStream(mine);
  if (!ok || threadIdx.x != 0) return;
  if (kTokens) {
    times[blockIdx.x].tokens = mine.tokens;
  } else {
    times[blockIdx.x].streamBegin = mine.streamBegin;
    times[blockIdx.x].streamEnd = mine.streamEnd;
  }
}

}  // namespace

cudaError_t launchTokenProbe(const PeerView& view, ProbeTimes* times, cudaStream_t stream) {
  return launchKernel(probeKernel<true>, {1, kThreads, 0, stream}, view, times);
}

cudaError_t launchStreamProbe(const PeerView& view, ProbeTimes* times, cudaStream_t stream) {
  return launchKernel(probeKernel<false>, {view.channels, kThreads, 0, stream}, view, times);
}

}  // namespace seqpar
