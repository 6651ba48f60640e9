// The forward kernels of linear attention for sm_80 and up on an emulated CTA.
#include "common/covering.h"
#include "kernels/attn/linear/outputs.cuh"
#include "kernels/attn/linear/segment_states.cuh"
#include "linear_forward_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::test;
using seqpar::test::kSanitized;
using seqpar::test::thinned;

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
  for (const Decays decays : thinned({Decays::Mixed, Decays::Typical, Decays::Slow, Decays::Strong})) {
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

TEST_CASE("forward kernels in fp16 keep the state of few tokens under strong decays") {
  // Decayed values are subnormal in fp16, beside others that are not.
  ForwardSpec spec = specOf(Gate::Head, 2, 128, 256, Decays::Strong);
  spec.type = seqparFloat16;
  spec.batch = 2;
  spec.heads = spec.qkHeads = 2;
  spec.headsFirst = true;
  spec.initial = false;
  spec.seed = 3081272529185892442U;  // with small values in both tokens' columns
  checkForwardOf<Portable<Float16, 128, false>>(spec, Maps::Prefix);
  for (const Decays decays : {Decays::Strong, Decays::Mixed}) {
    spec = specOf(Gate::Token, decays == Decays::Strong ? 5 : 100, 64, 64, decays);
    spec.type = seqparFloat16;
    checkForward<Portable<Float16, 64, false>>(spec, Maps::Prefix);
    spec.size = 0x1p-9F;
    checkForward<Portable<Float16, 64, false>>(spec, Maps::Prefix);
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

TEST_CASE("forward kernels in fp16 with random shapes") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  const auto one = [&](const auto& from) { return from[random() % std::size(from)]; };
  for (int i = 0; i < (kSanitized ? 2 : 8); ++i) {
    constexpr int kKeys[] = {16, 64, 96, 128, 192, 256}, kValues[] = {16, 64, 80, 128, 256};
    constexpr int64_t kTokens[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 127, 200};
    constexpr Decays kDecays[] = {Decays::Typical, Decays::Slow, Decays::Strong, Decays::Thirty, Decays::Mixed};
    constexpr Gate kGates[] = {Gate::Head, Gate::Token, Gate::Token, Gate::Channel, Gate::None};
    ForwardSpec spec = specOf(one(kGates), one(kTokens), one(kKeys), one(kValues), one(kDecays));
    spec.type = seqparFloat16;
    spec.batch = 1 + static_cast<int64_t>(random() % 2);
    spec.heads = 1 + static_cast<int>(random() % 2);
    spec.headsFirst = random() % 2 == 0;
    spec.initial = random() % 2 == 0;
    spec.segmentTokens = 64 * static_cast<int64_t>(1 + random() % 4);
    if (spec.batch == 1 && random() % 3 == 0) spec.sequences = 1 + static_cast<int>(random() % 6);
    spec.seed = random();
    const auto check = [&]<int kDk>() {
      spec.gate == Gate::Channel ? checkForwardOf<Portable<Float16, kDk, true>>(spec, Maps::Prefix)
                                 : checkForwardOf<Portable<Float16, kDk, false>>(spec, Maps::Prefix);
    };
    if (spec.dk <= 64) {
      check.operator()<64>();
    } else if (spec.dk <= 128) {
      check.operator()<128>();
    } else {
      check.operator()<256>();
    }
  }
}
