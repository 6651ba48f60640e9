// Kernels of the short convolution; run.h has a thread's program.
//
// Work      a thread has V adjacent channels of a stretch of tokens of one batch entry. sumKernel: one element of
//           dWeight or dBias, whose terms it adds in their order
// Roles     all threads alike
// Tiles     a token at a time; a window of W inputs, in backward also of W gradients, is in registers
// Smem      none
// Barriers  none
// Overlap   none
#include "kernels/attn/short_conv/run.h"
#include "kernels/launch.h"
#include "seqpar/types.h"

namespace seqpar::attn::short_conv {
namespace {

constexpr int kThreads = 128;

/// Index order of blockIdx.x: blocks of channels of a stretch, then stretches, then the batch.
struct Place {
  int64_t channel, stretch, batch;
  __device__ Place(int64_t channels, int64_t stretches, int each) {
    const int64_t blocks = (channels + int64_t{kThreads} * each - 1) / (int64_t{kThreads} * each);
    channel = (blockIdx.x % blocks * kThreads + threadIdx.x) * each;
    stretch = blockIdx.x / blocks % stretches;
    batch = blockIdx.x / blocks / stretches;
  }
};

template <class T, int W, int V>
__global__ void __launch_bounds__(kThreads)
    forwardKernel(const __grid_constant__ ConvTask task, int64_t first, int64_t last) {
  const Stretches cut = forwardStretches(last - first);
  const Place place(task.channels, cut.count, V);
  if (place.channel >= task.channels) return;
  const int64_t begin = first + place.stretch * cut.tokens;
  Run<T, W, V>(task, place.batch, place.channel).forward(begin, min(begin + cut.tokens, last));
}

template <class T, int W, int V>
__global__ void __launch_bounds__(kThreads) edgeKernel(const __grid_constant__ ConvTask task) {
  const Place place(task.channels, 1, V);
  if (place.channel < task.channels) Run<T, W, V>(task, place.batch, place.channel).edge();
}

template <class T, int W, int V>
__global__ void __launch_bounds__(kThreads) backwardKernel(const __grid_constant__ ConvTask task) {
  const Stretches cut = backwardStretches(task);
  const Place place(task.channels, cut.count, V);
  if (place.channel >= task.channels) return;
  const int64_t begin = place.stretch * cut.tokens;
  Run<T, W, V>(task, place.batch, place.channel)
      .backward(begin, min(begin + cut.tokens, task.tokens), place.batch * cut.count + place.stretch);
}

__global__ void __launch_bounds__(kThreads) sumKernel(const __grid_constant__ ConvTask task, int64_t rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < (task.width + 1) * task.channels) addTerms(task, rows, i);
}

/// Calls act(T(), W, V) with the types of a task.
template <class Act>
int dispatch(const ConvTask& task, const Act& act) {
  const auto each = [&](auto t, auto w) {
    return byFours(task) ? act(t, w, std::integral_constant<int, 4>()) : act(t, w, std::integral_constant<int, 1>());
  };
  const auto width = [&](auto t) {
    return task.width <= 4 ? each(t, std::integral_constant<int, 4>()) : each(t, std::integral_constant<int, 8>());
  };
  if (task.type == seqparFloat32) return width(Fp32());
  return task.type == seqparFloat16 ? width(Fp16()) : width(Bf16());
}

LaunchShape shapeOf(const ConvTask& task, int64_t stretches, int each, void* stream) {
  const int64_t blocks = (task.channels + int64_t{kThreads} * each - 1) / (int64_t{kThreads} * each);
  LaunchShape shape;
  shape.ctas = dim3(static_cast<unsigned>(blocks * stretches * task.batch));
  shape.threads = dim3(kThreads);
  shape.stream = static_cast<cudaStream_t>(stream);
  return shape;
}

}  // namespace

int launchForward(const ConvTask& task, int64_t first, int64_t last, void* stream) {
  if (first >= last) return cudaSuccess;
  return dispatch(task, [&](auto t, auto w, auto v) -> int {
    return launchKernel(forwardKernel<decltype(t), w(), v()>,
                        shapeOf(task, forwardStretches(last - first).count, v(), stream), task, first, last);
  });
}

int launchEdgeGradients(const ConvTask& task, void* stream) {
  if (task.edgeTokens == 0) return cudaSuccess;
  return dispatch(task, [&](auto t, auto w, auto v) -> int {
    return launchKernel(edgeKernel<decltype(t), w(), v()>, shapeOf(task, 1, v(), stream), task);
  });
}

int launchBackward(const ConvTask& task, void* stream) {
  const Stretches cut = backwardStretches(task);
  if (cut.count > 0) {
    const int error = dispatch(task, [&](auto t, auto w, auto v) -> int {
      return launchKernel(backwardKernel<decltype(t), w(), v()>, shapeOf(task, cut.count, v(), stream), task);
    });
    if (error != cudaSuccess) return error;
  }
  if (task.dWeight == nullptr && task.dBias == nullptr) return cudaSuccess;
  LaunchShape shape;
  shape.ctas = dim3(static_cast<unsigned>(((task.width + 1) * task.channels + kThreads - 1) / kThreads));
  shape.threads = dim3(kThreads);
  shape.stream = static_cast<cudaStream_t>(stream);
  return launchKernel(sumKernel, shape, task, task.batch * cut.count);
}

}  // namespace seqpar::attn::short_conv
