// The forward kernels of linear attention for sm_80 and up on an emulated CTA.
#include "kernels/attn/linear/outputs.cuh"
#include "kernels/attn/linear/segment_states.cuh"
#include "linear_forward_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::test;

namespace {

template <class T, int kDk, bool kChannel>
struct Portable {
  using Shape = KernelShape<kDk>;

  /// act(item) for each item of a CTA, followed by a barrier.
  template <class Pass, class Act>
  static void each(const Pass& pass, int segments, const Act& act) {
    const int tiles = (pass.problem.dv + Shape::kValues - 1) / Shape::kValues;
    const int64_t items = itemCount(pass.problem, pass.heads, segments, tiles);
    for (int64_t index = ptx::block(); index < items; index += ptx::blocks()) {
      act(itemAt(index, pass.problem, pass.heads, pass.segments, segments, tiles));
      ptx::syncthreads();
    }
  }
  static void states(const SegmentStates& pass, int ctas, uint64_t seed) {
    emulator::run(ctas, Shape::kThreads, SegmentStatesShared<Shape, kChannel>::kBytes, seed, [&] {
      each(pass, pass.segments.count,
           [&](const Item& item) { segmentState<T, kDk, kChannel>(pass, item, ptx::sharedMemory()); });
    });
  }
  static void outputs(const Outputs& pass, int ctas, uint64_t seed) {
    emulator::run(ctas, Shape::kThreads, OutputsShared<Shape, kChannel>::kBytes, seed, [&] {
      each(pass, allSegments(pass.segments),
           [&](const Item& item) { outputsOf<T, kDk, kChannel>(pass, item, ptx::sharedMemory()); });
    });
  }
};

}  // namespace

TEST_CASE("forward kernels with a decay a channel") {
  for (const Decays decays : {Decays::Typical, Decays::Slow, Decays::Strong, Decays::Mixed}) {
    checkForward<Portable<Bfloat16, 64, true>>(specOf(Gate::Channel, 130, 64, 64, decays), Maps::Prefix);
  }
  ForwardSpec spec = specOf(Gate::Channel, 100, 112, 144, Decays::Typical);
  spec.type = seqparFloat16;
  spec.gateType = seqparBfloat16;
  spec.heads = 2;
  checkForward<Portable<Float16, 128, true>>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels with a decay a token or a head, and without") {
  for (const Gate gate : {Gate::Token, Gate::Head, Gate::None}) {
    ForwardSpec spec = specOf(gate, 150, 128, 64, Decays::Typical);
    spec.segmentTokens = 128;
    checkForward<Portable<Bfloat16, 128, false>>(spec, Maps::Prefix);
  }
  ForwardSpec spec = specOf(Gate::Token, 70, 256, 272, Decays::Mixed);
  spec.batch = 2;
  spec.headsFirst = true;
  checkForward<Portable<Bfloat16, 256, false>>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels in fp16 keep small states") {
  for (const float size : {0x1p-9F, 0x1p5F}) {
    for (const Gate gate : {Gate::Channel, Gate::Token, Gate::None}) {
      ForwardSpec spec = specOf(gate, 70, 64, 48, Decays::Typical);
      spec.type = seqparFloat16;
      spec.size = size;
      gate == Gate::Channel ? checkForward<Portable<Float16, 64, true>>(spec, Maps::Prefix)
                            : checkForward<Portable<Float16, 64, false>>(spec, Maps::Prefix);
    }
  }
}

TEST_CASE("forward kernels keep packed sequences apart") {
  for (const bool half : {false, true}) {
    for (const int sequences : {1, 3, 7}) {
      ForwardSpec spec = specOf(Gate::Channel, 150, 64, 48, half ? Decays::Typical : Decays::Mixed);
      spec.sequences = sequences;
      spec.type = half ? seqparFloat16 : seqparBfloat16;
      spec.gateType = half ? seqparBfloat16 : seqparFloat32;
      spec.heads = 2;
      half ? checkSequencesApart<Portable<Float16, 64, true>>(spec, Maps::Prefix)
           : checkSequencesApart<Portable<Bfloat16, 64, true>>(spec, Maps::Prefix);
      spec.gateType = seqparFloat32;
      spec.gate = sequences == 3 ? Gate::Head : sequences == 1 ? Gate::None : Gate::Token;
      spec.qkHeads = 1;
      half ? checkSequencesApart<Portable<Float16, 64, false>>(spec, Maps::Prefix)
           : checkSequencesApart<Portable<Bfloat16, 64, false>>(spec, Maps::Prefix);
    }
  }
}

TEST_CASE("forward kernels with packed sequences") {
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    ForwardSpec spec = specOf(gate, 210, 64, 64, Decays::Typical);
    spec.sequences = 4;
    spec.segmentTokens = 128;
    if (gate == Gate::Channel) {
      checkForward<Portable<Bfloat16, 64, true>>(spec, Maps::Prefix);
    } else {
      checkForward<Portable<Bfloat16, 64, false>>(spec, Maps::Prefix);
    }
  }
}
