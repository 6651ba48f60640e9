#include "linear_backward_bench.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/attn/linear/args.h"

using namespace seqpar;
using namespace seqpar::attn;

namespace {

constexpr double kBandwidth = 4.3e12;  // of an H200, bytes read and written

/// Numbers between -1 and 1, or logarithms of decays with a mean of -0.05.
__global__ void fill(void* data, int64_t count, int type, bool gates, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    x ^= x >> 16;
    const float unit = static_cast<float>(x >> 8) * 0x1p-24f, value = gates ? -0.1f * unit : 2 * unit - 1;
    if (type == seqparFloat32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>((__float_as_uint(value) + 0x8000u) >> 16);
    }
  }
}

bool failed(int error, const char* what) {
  if (error != 0) std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  return error != 0;
}

/// Device memory for one row of the table, freed with it.
class Arena {
 public:
  ~Arena() {
    for (void* pointer : all_) cudaFree(pointer);
  }
  void* take(int64_t bytes) {
    void* pointer = nullptr;
    if (failed(cudaMalloc(&pointer, static_cast<size_t>(bytes)), "cudaMalloc")) return nullptr;
    all_.push_back(pointer);
    total += bytes;
    return pointer;
  }
  void* drawn(int64_t count, int type, bool gates = false) {
    void* pointer = take(count * (type == seqparFloat32 ? 4 : 2));
    fill<<<1024, 256>>>(pointer, count, type, gates, static_cast<uint32_t>(all_.size()) * 977u);
    return pointer;
  }
  int64_t total = 0;

 private:
  std::vector<void*> all_;
};

template <class Work>
double milliseconds(const Work& work) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < 13; ++i) {
    cudaEventRecord(begin);
    if (work() != 0) return NAN;
    cudaEventRecord(end);
    if (failed(cudaEventSynchronize(end), "kernel")) return NAN;
    float time = 0;
    cudaEventElapsedTime(&time, begin, end);
    if (i >= 3) times.push_back(time);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Row {
  const char* name;
  Gate gate;
  int gateType;
  int64_t tokens;
  int heads, dimension;
  int64_t segmentTokens;
};

bool bench(const Row& row) {
  Arena arena;
  LinearProblem problem;
  problem.tokens = row.tokens;
  problem.heads = problem.qkHeads = row.heads;
  problem.dk = problem.dv = row.dimension;
  problem.gate = row.gate;
  problem.gateType = row.gateType;
  problem.scale = 0.1f;
  const int64_t width = int64_t{row.heads} * row.dimension, numbers = row.tokens * width;
  const auto dense = [&](void* data) { return Input{data, numbers, width, row.dimension}; };
  const auto output = [&](void* data) { return Output{data, numbers, width, row.dimension}; };
  problem.q = dense(arena.drawn(numbers, seqparBfloat16));
  problem.k = dense(arena.drawn(numbers, seqparBfloat16));
  problem.v = dense(arena.drawn(numbers, seqparBfloat16));
  const Input dOut = dense(arena.drawn(numbers, seqparBfloat16));
  const bool channel = row.gate == Gate::Channel;
  const int64_t gateCount = channel ? numbers : row.tokens * row.heads;
  const int64_t gateBytes = gateCount * (row.gateType == seqparFloat32 ? 4 : 2);
  problem.gates = channel ? dense(arena.drawn(gateCount, row.gateType, true))
                          : Input{arena.drawn(gateCount, row.gateType, true), gateCount, row.heads, 1};
  Segments segments;
  segments.tokens = row.segmentTokens;
  segments.count = static_cast<int>((row.tokens + row.segmentTokens - 1) / row.segmentTokens);
  const auto maps = [&] {
    void* memory = arena.drawn(static_cast<int64_t>(segmentMapsSize(problem, segments) / 4), seqparFloat32, true);
    return segmentMapsIn(memory, problem, segments);
  };
  const int64_t states = int64_t{row.heads} * row.dimension * row.dimension;
  SegmentStateGradients first;
  first.problem = problem;
  first.segments = segments;
  first.heads = {0, row.heads};
  first.dOut = dOut;
  first.maps = maps();
  first.stateGradient = static_cast<float*>(arena.take(states * 4));
  first.logDecay = static_cast<float*>(arena.take(int64_t{row.heads} * row.dimension * 4));
  Gradients second;
  second.problem = problem;
  second.segments = segments;
  second.heads = first.heads;
  second.dOut = dOut;
  second.before = maps();
  second.after = first.maps;
  second.dq = output(arena.take(numbers * 2));
  second.dk = output(arena.take(numbers * 2));
  second.dv = output(arena.take(numbers * 2));
  second.dGates = {arena.take(gateBytes), problem.gates.batch, problem.gates.token, problem.gates.head};
  second.dGateType = row.gateType;
  second.workspace = arena.take(static_cast<int64_t>(gradientsWorkspaceSize(problem, segments)));
  if (failed(cudaDeviceSynchronize(), "inputs")) return false;

  const double one = milliseconds([&] { return launchSegmentStateGradients(first, {}); });
  const double two = milliseconds([&] { return launchGradients(second, {}); });
  const double minimumOne = static_cast<double>(numbers * 4 + gateBytes);
  const double minimumTwo = static_cast<double>(numbers * 14 + gateBytes * 2);
  const auto rate = [](double bytes, double time) { return bytes / time / 1e6; };
  std::printf(
      "%-10s %6lld x %2d d%-3d segments %4lld | maps %.3f ms %5.0f GB/s (%2.0f%%) | gradients %.3f ms %5.0f GB/s "
      "(%2.0f%%) | "
      "workspace %.0f MiB\n",
      row.name, static_cast<long long>(row.tokens), row.heads, row.dimension, static_cast<long long>(row.segmentTokens),
      one, rate(minimumOne, one), 100 * rate(minimumOne, one) * 1e9 / kBandwidth, two, rate(minimumTwo, two),
      100 * rate(minimumTwo, two) * 1e9 / kBandwidth,
      static_cast<double>(gradientsWorkspaceSize(problem, segments) + 2 * segmentMapsSize(problem, segments)) /
          (1 << 20));
  return std::isfinite(one) && std::isfinite(two);
}

}  // namespace

int benchLinearBackward(const char* filter) {
  std::printf("bf16, batch 1; GB/s of inputs read once and outputs written once, and their share of 4.3 TB/s\n");
  bool good = true;
  for (const int64_t tokens : {8192, 32768}) {
    for (const int heads : {32, 16}) {
      for (const int64_t segment : {512, 1024, 2048}) {
        for (const Row& row : {Row{"gla", Gate::Channel, seqparFloat32, tokens, heads, 128, segment},
                               Row{"gla-bf16", Gate::Channel, seqparBfloat16, tokens, heads, 128, segment},
                               Row{"scalar", Gate::Token, seqparFloat32, tokens, heads, 128, segment}}) {
          if (std::strstr(row.name, filter) != nullptr) good &= bench(row);
        }
      }
    }
  }
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    good &= bench({gate == Gate::Channel ? "gla" : "scalar", gate, seqparFloat32, 8192, 32, 64, 1024});
  }
  return good ? 0 : 1;
}
