// Forward kernels of linear attention on an emulated CTA, compared with a recurrence in fp64.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "kernels/attn/linear/args.h"
#include "kernels/attn/linear/warp_ops.h"
#include "support/linear_forward_case.h"

namespace seqpar::attn::test {

using seqpar::test::Decays;
using seqpar::test::Expected;
using seqpar::test::ForwardCase;
using seqpar::test::ForwardSpec;

/// From maps of segments by themselves to what Outputs takes without `apart`; the GPU's is fold.cu.
inline void foldMaps(const LinearProblem& problem, const Segments& segments, const SegmentMaps& maps) {
  const int64_t size = int64_t{problem.dk} * problem.dv, width = decayWidth(problem);
  for (int64_t head = 0; head < problem.batch * problem.heads; ++head) {
    std::vector<float> sum(static_cast<size_t>(size), 0);
    for (int64_t map = head * segments.count; map < (head + 1) * segments.count; ++map) {
      for (int64_t i = 0; i < size; ++i) {
        const float factor = std::exp(maps.logDecays[map * width + (width > 1 ? i / problem.dv : 0)]);
        float &state = maps.states[map * size + i], &before = sum[static_cast<size_t>(i)];
        const float after = (factor == 0 ? 0 : factor * before) + state;
        state = before;
        before = after;
      }
    }
  }
}

inline void checkWithin(const char* what, const Expected& expected, const std::vector<double>& found) {
  int64_t worst = -1;
  const double ratio = excess(expected, found, &worst);
  INFO(what << " number " << worst);
  CHECK(ratio <= 1);
}

inline ForwardSpec specOf(Gate gate, int64_t tokens, int dk, int dv, Decays decays) {
  ForwardSpec spec;
  spec.gate = gate;
  spec.tokens = tokens;
  spec.heads = spec.qkHeads = 1;
  spec.dk = dk;
  spec.dv = dv;
  spec.decays = decays;
  spec.segmentTokens = 64;
  return spec;
}

/// Both passes by `K`, which has states(pass, ctas, seed) and outputs(pass, ctas, seed).
template <class K>
void checkForward(ForwardSpec spec, bool apart, int ctas = 2, bool packed = false) {
  spec.seed = std::random_device{}();
  INFO(spec.name() << (apart ? ", apart" : "") << (packed ? ", packed" : ""));
  ForwardCase test(spec);
  LinearProblem problem = test.layout;
  problem.q.data = test.q.data();
  problem.k.data = test.k.data();
  problem.v.data = test.v.data();
  problem.gates.data = test.gates.data();
  problem.starts = test.starts.empty() ? nullptr : test.starts.data();
  problem.startCount = static_cast<int64_t>(test.starts.size());

  SegmentStates first;
  first.problem = problem;
  first.segments = spec.segments(0);
  first.heads = {0, spec.heads};
  std::vector<float> workspace(segmentMapsSize(problem, first.segments) / sizeof(float), NAN);
  first.maps = segmentMapsIn(workspace.data(), problem, first.segments);
  first.apart = apart;
  first.packed = packed;
  K::states(first, ctas, spec.seed);
  if (!apart) foldMaps(problem, first.segments, first.maps);

  const size_t rows = static_cast<size_t>(spec.batch * spec.tokens * spec.heads);
  std::vector<uint16_t> out(rows * static_cast<size_t>(spec.dv), 0xffff);
  std::vector<float> finalState(static_cast<size_t>(spec.batch * spec.heads * spec.dk) * static_cast<size_t>(spec.dv),
                                NAN);
  Outputs second;
  second.problem = problem;
  second.segments = first.segments;
  second.heads = first.heads;
  second.maps = first.maps;
  second.initial = spec.initial ? test.initial.data() : nullptr;
  second.out = {out.data(), spec.tokens * spec.heads * spec.dv, spec.dv, spec.tokens * spec.dv};
  second.finalState = finalState.data();
  second.apart = apart;
  second.packed = packed;
  K::outputs(second, ctas, spec.seed);

  test.computeExpected();
  std::vector<double> found;
  for (const uint16_t bits : out) {
    found.push_back(spec.type == seqparBfloat16 ? bfloatToFloat(bits) : halfToFloat(bits));
  }
  checkWithin("output", test.out, found);
  checkWithin("final state", test.finalState, {finalState.begin(), finalState.end()});
}

}  // namespace seqpar::attn::test
