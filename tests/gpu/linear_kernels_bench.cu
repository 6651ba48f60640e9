#include "linear_kernels_bench.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "kernels/attn/linear/args.h"

namespace seqpar::test {
namespace {

using namespace seqpar::attn;

constexpr double kBandwidth = 4.3e12;  // bytes a second that a device copy moves on an H200
constexpr int kReplays = 20;
int errors = 0;

void must(int error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  ++errors;
}

__global__ void fill(uint32_t* words, size_t count, int kind) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 29;
    const auto normal = [](uint32_t bits) {  // about
      float sum = 0;
      for (int j = 0; j < 4; ++j) sum += static_cast<float>(bits >> 8 * j & 255) / 256 - 0.5F;
      return sum * 1.73F;
    };
    const float a = normal(static_cast<uint32_t>(x)), b = normal(static_cast<uint32_t>(x >> 32));
    const auto gate = [](float number) { return -log1pf(expf(-number)) / 16; };
    if (kind == 1) {
      words[i] = __float_as_uint(gate(a));
    } else {
      const float low = kind == 2 ? gate(a) : a, high = kind == 2 ? gate(b) : b;
      words[i] = __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000U);
    }
  }
}

/// kind 0: normal numbers in bf16; 1: log-decays as FLA's benchmarks draw them, in fp32; 2: in bf16.
void* filled(size_t bytes, int kind) {
  void* data = nullptr;
  must(cudaMalloc(&data, bytes), "cudaMalloc");
  fill<<<1024, 256>>>(static_cast<uint32_t*>(data), bytes / 4, kind);
  must(cudaGetLastError(), "fill");
  return data;
}

/// The median of graph replays, ms.
double replayed(const std::function<void(cudaStream_t)>& work) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamCreate(&stream), "cudaStreamCreate");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  work(stream);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  std::vector<cudaEvent_t> events(kReplays + 1);
  for (cudaEvent_t& event : events) must(cudaEventCreate(&event), "cudaEventCreate");
  for (int i = 0; i < 3; ++i) must(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
  for (int i = 0; i <= kReplays; ++i) {
    must(cudaEventRecord(events[static_cast<size_t>(i)], stream), "cudaEventRecord");
    if (i < kReplays) must(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
  }
  must(cudaStreamSynchronize(stream), "bench");
  std::vector<float> times(kReplays);
  for (size_t i = 0; i < kReplays; ++i) must(cudaEventElapsedTime(&times[i], events[i], events[i + 1]), "times");
  std::sort(times.begin(), times.end());
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[kReplays / 2];
}

void bench(const char* name, Gate gate, int gateType, int64_t tokens, int heads, int d) {
  LinearProblem problem;
  problem.tokens = tokens;
  problem.heads = problem.qkHeads = heads;
  problem.dk = problem.dv = d;
  problem.gate = gate;
  problem.gateType = gateType;
  problem.scale = 0.088F;
  const size_t numbers = static_cast<size_t>(tokens) * static_cast<size_t>(heads) * static_cast<size_t>(d);
  Input rows;
  rows.token = int64_t{heads} * d;
  rows.head = d;
  std::vector<void*> owned;
  const auto make = [&](size_t bytes, int kind) {
    owned.push_back(filled(bytes, kind));
    return owned.back();
  };
  problem.q = problem.k = problem.v = rows;
  problem.q.data = make(numbers * 2, 0);
  problem.k.data = make(numbers * 2, 0);
  problem.v.data = make(numbers * 2, 0);
  double gateBytes = 0;
  if (gate == Gate::Channel) {
    const size_t size = gateType == seqparFloat32 ? 4 : 2;
    problem.gates = rows;
    problem.gates.data = make(numbers * size, gateType == seqparFloat32 ? 1 : 2);
    gateBytes = static_cast<double>(numbers * size);
  } else if (gate == Gate::Token) {
    problem.gates.token = heads;
    problem.gates.head = 1;
    problem.gates.data = make(static_cast<size_t>(tokens * heads) * 4, 1);
    gateBytes = static_cast<double>(tokens * heads) * 4;
  } else if (gate == Gate::Head) {
    problem.gates.data = make(static_cast<size_t>(heads) * 4, 1);
  }
  const Segments segments = cutIntoSegments(problem, ctasAtOnce(problem));
  SegmentStates first;
  first.problem = problem;
  first.segments = segments;
  first.heads = {0, heads};
  first.maps = segmentMapsIn(make(segmentMapsSize(problem, segments), 0), problem, segments);
  Outputs second;
  second.problem = problem;
  second.segments = segments;
  second.heads = first.heads;
  second.maps = first.maps;
  second.out = {make(numbers * 2, 0), 0, rows.token, rows.head};
  SegmentStates ranks = first;  // of several ranks: the map of the whole
  ranks.state = static_cast<float*>(make(static_cast<size_t>(heads) * static_cast<size_t>(d * d) * 4, 0));
  ranks.logDecay = static_cast<float*>(make(static_cast<size_t>(heads) * static_cast<size_t>(d) * 4, 0));
  const auto states = [&](cudaStream_t stream) {
    must(launchSegmentStates(first, {stream, 0}), "launchSegmentStates");
  };
  const auto outputs = [&](cudaStream_t stream) { must(launchOutputs(second, {stream, 0}), "launchOutputs"); };
  const double both = replayed([&](cudaStream_t stream) {
    states(stream);
    outputs(stream);
  });
  const double all = replayed([&](cudaStream_t stream) { must(launchSegmentStates(ranks, {stream, 0}), "rank"); });
  const double one = replayed(states), three = replayed(outputs);
  const double bytes = static_cast<double>(numbers) * 8 + gateBytes;
  const double passBytes = static_cast<double>(numbers) * 4 + gateBytes;
  std::printf(
      "%-14s %6lld x %2d d %3d  %2d x %5lld | %7.4f ms %5.0f GB/s %3.0f%% | pass 1 %.4f (%.0f GB/s), for a rank %.4f "
      "(%.0f GB/s), pass 3 %.4f (%.0f GB/s)\n",
      name, static_cast<long long>(tokens), heads, d, segments.count, static_cast<long long>(segments.tokens), both,
      bytes / both / 1e6, 100 * bytes / kBandwidth / both * 1e3, one, passBytes / one / 1e6, all, passBytes / all / 1e6,
      three, bytes / three / 1e6);
  for (void* data : owned) cudaFree(data);
}

}  // namespace

int benchLinearForward() {
  std::printf(
      "gate, tokens x heads, segments | a replay of both passes, GB/s of inputs and outputs once, share of 4.3 TB/s\n");
  for (const int64_t tokens : {8192, 32768}) {
    for (const int heads : {32, 16}) {
      bench("channel fp32", Gate::Channel, seqparFloat32, tokens, heads, 128);
      bench("channel bf16", Gate::Channel, seqparBfloat16, tokens, heads, 128);
      bench("token", Gate::Token, seqparFloat32, tokens, heads, 128);
      bench("head", Gate::Head, seqparFloat32, tokens, heads, 128);
      bench("none", Gate::None, seqparFloat32, tokens, heads, 128);
    }
  }
  for (const int d : {64, 256}) {
    bench("channel fp32", Gate::Channel, seqparFloat32, 8192, 32, d);
    bench("token", Gate::Token, seqparFloat32, 8192, 32, d);
  }
  return errors == 0 ? 0 : 1;
}

}  // namespace seqpar::test
