// The GPU's passes of the delta rule, with its kernels on an emulated CTA.
#include "attn/linear/device/delta_windows.h"
#include "kernels/attn/linear/delta/chain.h"
#include "kernels/attn/linear/delta/differentiate.h"
#include "kernels/attn/linear/delta/prepare.h"
#include "unit/attn/linear_passes_check.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::linear::test;  // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::linear;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn;                // NOLINT(google-build-using-namespace)
using namespace seqpar;                      // NOLINT(google-build-using-namespace)
using seqpar::test::DecayStrength;

/// Products of 16-bit tensors are in TF32: each term is rounded at most 8 times, by half an ulp.
constexpr double kTf32Terms = 8 * 0x1p13;

/// Steps of the delta rule on an emulated CTA.
class EmulatedSteps final : public DeltaSteps {
 public:
  void run(delta::Step step, const delta::Task& task, void*) override {
    const auto emulate = [&](auto kernel) {
      emulator::run(static_cast<int>(delta::blocksOf(step, task)), delta::kThreads,
                    static_cast<size_t>(delta::sharedNumbers(step, task)) * sizeof(float), 1, [&] { kernel(task); });
    };
    switch (step) {
      case delta::Step::Prepare:
        return emulate(&delta::Prepare::run);
      case delta::Step::Advance:
        return emulate(&delta::Advance::run);
      case delta::Step::Retreat:
        return emulate(&delta::Retreat::run);
      case delta::Step::Differentiate:
        return emulate(&delta::Differentiate::run);
    }
  }
  void transpose(float* to, const float* from, int64_t count, int size, void*) override { set(to, from, count, size); }
  void identity(float* to, int64_t count, int size, void*) override { set(to, nullptr, count, size); }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

 private:
  static void set(float* to, const float* from, int64_t count, int size) {
    for (int64_t i = 0; i < count * size * size; ++i) to[i] = delta::squareElement(from, i, size);
  }
};

TEST_CASE("the GPU's passes of the delta rule agree with the recurrence") {
  const int family = GENERATE(seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda);
  const seqpar::test::Seed seed;
  for (const auto& lengths : {std::vector<size_t>{129}, {64, 0, 9}}) {
    const bool alone = lengths.size() == 1;
    auto c = makeCase(family, std::accumulate(lengths.begin(), lengths.end(), size_t{0}),
                      alone ? DecayStrength::Mixed : DecayStrength::Weak);
    c.normalize = !alone;
    if (!alone) c.cuSeqlens = {0, 5, 5, 66, 73};
    if (alone) c.dk = 20;
    if (!alone && family == seqparAttnGatedDelta) c.dataType = c.betaType = seqparBfloat16;
    if (!alone && family == seqparAttnKda) c.dataType = seqparFloat16;
    c.fill(seed);
    CAPTURE(c.describe(), lengths);
    const auto make = [](const Shard& shard, Exec& exec) {
      return std::make_unique<DeltaWindows>(shard, exec, std::make_unique<EmulatedSteps>(), 2);
    };
    check(c, lengths, 1, make, c.dataType == seqparFloat32 ? 0 : kTf32Terms);
  }
}

}  // namespace
