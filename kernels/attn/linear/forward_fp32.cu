// Both passes of the forward for fp32 tensors, token by token: a slow reference.
//
// Work      a CTA of one warp takes items (batch, segment, head, 32 columns of v) in steps of the grid
// Roles     a lane has one column of v
// Tiles     a token at a time; the state's column is fp32
// Smem      [dk][32] floats: the state
// Barriers  none: no lane reads another lane's column
// Overlap   griddepcontrol.wait at the start of outputsFp32, which reads maps
#include <cmath>

#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/instances.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/work.h"

namespace seqpar::attn {
namespace {

constexpr int kColumns = 32;

/// The natural logarithm of a token's decay.
__device__ float gateOf(const LinearProblem& problem, const Item& item, int64_t token, int channel) {
  if (problem.gate == Gate::None) return 0;
  if (problem.gate == Gate::Head) return static_cast<const float*>(problem.gates.data)[item.head];
  const int64_t at = item.batch * problem.gates.batch + token * problem.gates.token + item.head * problem.gates.head +
                     (problem.gate == Gate::Channel ? channel : 0);
  if (problem.gateType == seqparFloat32) return static_cast<const float*>(problem.gates.data)[at];
  return __uint_as_float(uint32_t{static_cast<const uint16_t*>(problem.gates.data)[at]} << 16);
}

__device__ const float* rowOf(const Input& tensor, const Item& item, int64_t token, int head) {
  return static_cast<const float*>(tensor.data) + item.batch * tensor.batch + token * tensor.token +
         int64_t{head} * tensor.head;
}

/// state = decay * state + k v of one token, for this lane's column.
__device__ void advance(float* state, const LinearProblem& problem, const Item& item, int64_t token, const float* k,
                        float v) {
  for (int channel = 0; channel < problem.dk; ++channel) {
    const float decay = expf(gateOf(problem, item, token, channel));
    float& number = state[channel * kColumns];
    number = (decay == 0 ? 0 : decay * number) + k[channel] * v;
  }
}

__global__ void segmentStatesFp32(const __grid_constant__ SegmentStates pass, int segments, int64_t items) {
  extern __shared__ float shared[];
  const LinearProblem& problem = pass.problem;
  const int lane = static_cast<int>(threadIdx.x);
  float* const state = shared + lane;
  const int tiles = (problem.dv + kColumns - 1) / kColumns;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    const Item item = itemAt(index, problem, pass.heads, pass.segments, segments, tiles);
    const int column = item.tile * kColumns + lane;
    const int kHead = qkHead(problem, item.head);
    for (int channel = 0; channel < problem.dk; ++channel) state[channel * kColumns] = 0;
    for (int64_t token = item.begin; token < item.end; ++token) {
      const float v = column < problem.dv ? rowOf(problem.v, item, token, item.head)[column] : 0;
      advance(state, problem, item, token, rowOf(problem.k, item, token, kHead), v);
    }
    const int64_t map = mapIndex(item, problem, pass.segments);
    for (int channel = 0; channel < problem.dk && column < problem.dv; ++channel) {
      pass.maps.states[(map * problem.dk + channel) * problem.dv + column] = state[channel * kColumns];
    }
    const int width = transitionWidth(problem);
    for (int channel = lane; item.tile == 0 && channel < width; channel += kColumns) {
      float sum = 0;
      for (int64_t begin = item.begin; begin < item.end; begin += kChunkTokens) {
        float part = 0;  // nested sums have smaller rounding errors
        for (int64_t token = begin; token < min(begin + kChunkTokens, item.end); ++token) {
          part += gateOf(problem, item, token, channel);
        }
        sum += part;
      }
      pass.maps.transitions[map * width + channel] = startsSequence(item) ? -INFINITY : sum;
    }
  }
}

__global__ void outputsFp32(const __grid_constant__ Outputs pass, int64_t items) {
  extern __shared__ float shared[];
  ptx::griddepcontrolWait();
  const LinearProblem& problem = pass.problem;
  const int lane = static_cast<int>(threadIdx.x);
  float* const state = shared + lane;
  const int tiles = (problem.dv + kColumns - 1) / kColumns;
  const int width = transitionWidth(problem);
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    const Item item = itemAt(index, problem, pass.heads, pass.segments, allSegments(pass.segments), tiles);
    const int column = item.tile * kColumns + lane;
    const bool mine = column < problem.dv;
    const int kHead = qkHead(problem, item.head);
    const int64_t head = headIndex(item, problem), firstMap = mapIndex(item, problem, pass.segments) - item.before;
    for (int channel = 0; channel < problem.dk; ++channel) {
      float number = 0;
      if (mine && item.before > 0) {
        number = pass.maps.states[((firstMap + item.before) * problem.dk + channel) * problem.dv + column];
      }
      if (mine && pass.initial != nullptr && item.continues) {
        float sum = 0;
        for (int map = 0; map < item.before; ++map) {
          sum += pass.maps.transitions[(firstMap + map) * width + (width > 1 ? channel : 0)];
        }
        const float decay = expf(sum);
        if (decay != 0) number += decay * pass.initial[(head * problem.dk + channel) * problem.dv + column];
      }
      state[channel * kColumns] = number;
    }
    for (int64_t token = item.begin; token < item.end; ++token) {
      const float v = mine ? rowOf(problem.v, item, token, item.head)[column] : 0;
      advance(state, problem, item, token, rowOf(problem.k, item, token, kHead), v);
      const float* const q = rowOf(problem.q, item, token, kHead);
      float sum = 0;
      for (int channel = 0; channel < problem.dk; ++channel) sum += q[channel] * state[channel * kColumns];
      const int64_t row = item.batch * pass.out.batch + token * pass.out.token + item.head * pass.out.head;
      if (mine) static_cast<float*>(pass.out.data)[row + column] = sum * problem.scale;
    }
    if (pass.finalState == nullptr || item.segment != pass.segments.count - 1 || !mine) continue;
    for (int channel = 0; channel < problem.dk; ++channel) {
      pass.finalState[(head * problem.dk + channel) * problem.dv + column] = state[channel * kColumns];
    }
  }
}

int64_t itemsOf(const LinearProblem& problem, const HeadRange& heads, int segments) {
  return itemCount(problem, heads, segments, (problem.dv + kColumns - 1) / kColumns);
}

}  // namespace

int forwardSharedFp32(const LinearProblem& problem) {
  return problem.dk * kColumns * static_cast<int>(sizeof(float));
}

int runSegmentStatesFp32(const SegmentStates& pass, int segments, const Launch& launch) {
  const int64_t items = itemsOf(pass.problem, pass.heads, segments);
  if (items == 0) return cudaSuccess;
  return launchKernel(segmentStatesFp32, gridOf(items, launch.ctas), kColumns, forwardSharedFp32(pass.problem),
                      launch.stream, false, pass, segments, items);
}

int runOutputsFp32(const Outputs& pass, const Launch& launch) {
  const int64_t items = itemsOf(pass.problem, pass.heads, allSegments(pass.segments));
  if (items == 0) return cudaSuccess;
  return launchKernel(outputsFp32, gridOf(items, launch.ctas), kColumns, forwardSharedFp32(pass.problem), launch.stream,
                      true, pass, items);
}

}  // namespace seqpar::attn
