// The kernel between the passes: states before segments from the maps of segments (fold.h).
//
// Work      a thread has four adjacent elements of a head's state in all its segments; grid (elements / 512, heads,
//           batch)
// Roles     all threads alike
// Tiles     kFoldAtOnce segments per step: their loads are in flight together
// Smem      none
// Barriers  none
// Overlap   lets the next kernel start at once; griddepcontrol.wait at the start, because it reads the maps of pass 1
#pragma once

#include <cmath>

#include "kernels/arch/cuda_types.h"
#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/fold.h"

namespace seqpar::attn {

constexpr int kFoldThreads = 128;
constexpr int kFoldAtOnce = 16;  // segments with loads in flight together, per thread

/// A CTA's part of a head of a sequence. Each thread has four adjacent elements of the state.
SEQPAR_DEVICE void foldPart(const Fold& fold, unsigned column, unsigned ofHeads, unsigned sequence) {
  ptx::griddepcontrolLaunchDependents();
  ptx::griddepcontrolWait();
  const LinearProblem& problem = fold.problem;
  const int count = fold.segments.count;
  const int width = transitionWidth(problem);
  const int size = problem.dk * problem.dv;
  const int first = 4 * (static_cast<int>(column) * kFoldThreads + ptx::thread());
  const int64_t head = int64_t{sequence} * problem.heads + fold.heads.first + ofHeads;
  const auto mapOf = [&](int step) { return head * count + (fold.reverse ? count - 1 - step : step); };
  if (first >= size) return;
  const int channel = width > 1 ? first / problem.dv : 0;
  const int wanted = fold.state != nullptr || fold.logDecay != nullptr ? count : count - 1;
  float4 x = make_float4(0, 0, 0, 0);
  float all = 0;  // log-decay of all segments so far
  for (int begin = 0; begin < wanted; begin += kFoldAtOnce) {
    float4 states[kFoldAtOnce];
    float decays[kFoldAtOnce];
    SEQPAR_UNROLL
    for (int i = 0; i < kFoldAtOnce; ++i) {
      if (begin + i >= wanted) continue;
      states[i] = *reinterpret_cast<const float4*>(fold.maps.states + mapOf(begin + i) * size + first);
      decays[i] = fold.maps.transitions[mapOf(begin + i) * width + channel];
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kFoldAtOnce; ++i) {
      const int step = begin + i;
      if (step >= wanted) continue;
      if (step > 0 && fold.leaves == Maps::Prefix)
        *reinterpret_cast<float4*>(fold.maps.states + mapOf(step) * size + first) = x;
      const float decay = exp2f(decays[i] * kLog2e);
      const auto advance = [&](float& number, float state) { number = (decay == 0 ? 0 : decay * number) + state; };
      // -inf is final: later log-decays, NaN too, cannot restore a forgotten state.
      all = all == -INFINITY || decays[i] == -INFINITY ? -INFINITY : all + decays[i];
      advance(x.x, states[i].x);
      advance(x.y, states[i].y);
      advance(x.z, states[i].z);
      advance(x.w, states[i].w);
    }
  }
  if (fold.logDecay != nullptr && (width > 1 ? first % problem.dv : first) == 0) {
    fold.logDecay[head * width + channel] = all;
  }
  if (fold.state != nullptr) {
    if (fold.base != nullptr) {
      const float decay = exp2f(all * kLog2e);
      const float4 base = *reinterpret_cast<const float4*>(fold.base + head * size + first);
      const auto add = [&](float& number, float before) { number += decay == 0 ? 0 : decay * before; };
      add(x.x, base.x);
      add(x.y, base.y);
      add(x.z, base.z);
      add(x.w, base.w);
    }
    *reinterpret_cast<float4*>(fold.state + head * size + first) = x;
  } else if (wanted < count && count > 1 && fold.leaves == Maps::Prefix) {
    *reinterpret_cast<float4*>(fold.maps.states + mapOf(count - 1) * size + first) = x;
  }
}

}  // namespace seqpar::attn
