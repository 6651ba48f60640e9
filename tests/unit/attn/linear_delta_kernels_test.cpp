// The GPU's passes of the delta rule, with its kernels on an emulated CTA.
#include "common/covering.h"
#include "common/sanitized.h"
#include "unit/attn/linear_delta_emulated.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::linear::test;  // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::linear;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn;                // NOLINT(google-build-using-namespace)
using namespace seqpar;                      // NOLINT(google-build-using-namespace)
using seqpar::test::covers;
using seqpar::test::DecayStrength;

TEST_CASE("the GPU's passes of the delta rule agree with the recurrence") {
  const int family = GENERATE(seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda);
  const seqpar::test::Seed seed;
  for (const auto& lengths : {std::vector<size_t>{129}, {64, 0, 9}}) {
    const bool alone = lengths.size() == 1;
    if (!covers(static_cast<size_t>(family), 0, alone, 2)) continue;  // the other one with 16-bit tensors
    auto c = makeCase(family, std::accumulate(lengths.begin(), lengths.end(), size_t{0}),
                      alone ? DecayStrength::Mixed : DecayStrength::Weak);
    c.normalize = !alone;
    if (!alone) c.cuSeqlens = {0, 5, 5, 66, 73};
    if (alone) c.dk = 20;
    if (!alone && family == seqparAttnGatedDelta) c.dataType = c.betaType = seqparBfloat16;
    if (!alone && family == seqparAttnKda) c.dataType = seqparFloat16;
    c.fill(seed);
    CAPTURE(c.describe(), lengths);
    check(c, lengths, 1, emulated(false, 2), roundingsOf(c.dataType));
  }
}

TEST_CASE("the GPU's passes of the delta rule for 16-bit tensors agree with the recurrence") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const int family : {seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda}) {
    for (const bool alone : {true, false}) {
      if (!covers(static_cast<size_t>(family), 1, alone, 2)) continue;
      const int type = random() % 2 == 0 ? seqparBfloat16 : seqparFloat16;
      const auto lengths = alone ? std::vector<size_t>{1 + random() % 300} : std::vector<size_t>{65, 0, 10};
      auto c = makeCase(family, std::accumulate(lengths.begin(), lengths.end(), size_t{0}),
                        static_cast<DecayStrength>(random() % 3));
      // Keys of few numbers are alike or opposite, and may be tiny: their inverses and betas near 2 amplify roundings.
      const bool few = random() % 4 == 0;
      c.dk = few ? 1 + random() % 7 : 8 + random() % 121;
      c.dv = 1 + random() % 150;
      if (!few && random() % 2 == 0) {  // rows of 16-byte units
        c.dk = (c.dk + 7) / 8 * 8;
        c.dv = (c.dv + 7) / 8 * 8;
      }
      c.keyHeads = 1 + random() % 2;
      c.dataType = type;
      c.normalize = !few && random() % 2 == 0;
      c.keys = static_cast<seqpar::test::Keys>(random() % 3);
      c.mostBeta = type == seqparBfloat16 && !few && random() % 2 == 0 ? 2 : 1;  // gradients that fp16 can represent
      if (!alone && random() % 2 == 0) c.cuSeqlens = {0, 1, 64, 66, 75};
      const bool sm90 = random() % 3 != 0;
      const size_t records = random() % 2 == 0 ? 4 : 16;
      const int partChunks = random() % 2 == 0 ? 1 : 16;
      const bool reserves = random() % 2 == 0;
      const int sms = random() % 2 == 0 ? 32 : 0;
      c.fill(random());
      CAPTURE(c.describe(), lengths, sm90, records, partChunks, reserves, sms);
      check(c, lengths, 1, emulated(sm90, records, partChunks, reserves, sms), roundingsOf(type));
    }
  }
}

TEST_CASE("chains of the delta rule in segments of a window agree with the recurrence") {
  const bool packed = GENERATE(true, false);
  const int family = GENERATE(seqparAttnDelta, seqparAttnGatedDelta);
  if (!covers(static_cast<size_t>(family), packed, 0, 2)) return;
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  const auto strength = static_cast<DecayStrength>(random() % 3);
  auto c = makeCase(family, 64 * 6 + random() % 64, strength);
  c.dataType = random() % 2 == 0 ? seqparBfloat16 : seqparFloat16;
  c.dk = 8 + random() % 121;
  c.dv = 1 + random() % 150;
  if (packed) {
    const auto tokens = static_cast<int64_t>(c.tokens);
    c.cuSeqlens = {0, tokens / 5, tokens / 2, tokens / 2 + 1, tokens * 3 / 4, tokens};
  }
  c.fill(seed);
  const bool reserves = random() % 2 == 0;
  CAPTURE(c.describe(), reserves);
  check(c, {c.tokens}, 1, emulated(true, 64, 1, reserves, 1000), roundingsOf(c.dataType),
        strength == DecayStrength::Weak);
}

/// Counts launches without computing.
class CountedSteps final : public DeltaSteps {
 public:
  explicit CountedSteps(std::vector<delta::Task>& prepared, int sms = 0) : prepared_(prepared), sms_(sms) {}

  void run(delta::Step step, const delta::Task& task, void*) override {
    if (step == delta::Step::Prepare) prepared_.push_back(task);
  }
  void transpose(float*, const float*, int64_t, int, void*) override {}
  void identity(float*, int64_t, int, void*) override {}
  void fold(const delta::FoldTask&, void*) override {}
  void upload(void*, const void*, size_t) override {}
  int overlappingSms(const delta::Task&) const override { return sms_; }

 private:
  std::vector<delta::Task>& prepared_;
  const int sms_;
};

// Bounds of elements sum the worst case of all terms: a kernel may lose a block of columns and stay within them.
TEST_CASE("errors of the GPU's passes of the delta rule for 16-bit tensors have small norms") {
  const int family = GENERATE(seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda);
  const bool shared = GENERATE(true, false);
  const bool sm90 = GENERATE(true, false);
  if (!covers(static_cast<size_t>(family), shared, sm90, 2)) return;
  const seqpar::test::Seed seed;
  auto c = makeCase(family, 136, DecayStrength::Weak);
  c.dk = c.dv = 128;
  if (!shared) c.keyHeads = c.heads;
  c.dataType = c.betaType = shared ? seqparBfloat16 : seqparFloat16;
  c.fill(seed);
  const bool reserves = shared == sm90;
  CAPTURE(c.describe(), sm90, reserves);
  check(c, {72, 64}, 1, emulated(sm90, 16, 16, reserves), roundingsOf(c.dataType), true);
}

// Only well-conditioned cases of many elements: independent keys, betas of at most 1, weak decays.
TEST_CASE("errors of the GPU's passes of the delta rule have small norms for random shapes") {
  const int family = GENERATE(seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda);
  const seqpar::test::Seed seed;
  std::mt19937 random(seed + static_cast<unsigned>(family));
  const auto between = [&](size_t from, size_t to) { return from + random() % (to + 1 - from); };
  std::vector<size_t> lengths(between(1, 3));
  for (auto& length : lengths) length = between(48, 120);
  auto c = makeCase(family, std::accumulate(lengths.begin(), lengths.end(), size_t{0}), DecayStrength::Weak);
  c.dk = between(3, 16) * 8 - random() % 2;  // with rows of 16-byte units or without
  c.dv = between(3, 18) * 8 - random() % 2;
  c.keyHeads = between(1, 2);
  c.dataType = random() % 2 == 0 ? seqparBfloat16 : seqparFloat16;
  c.betaType = random() % 2 == 0 ? c.dataType : seqparFloat32;
  c.normalize = random() % 2 == 0;
  if (random() % 2 == 0) c.cuSeqlens = {0, 40, 40, static_cast<int64_t>(c.tokens)};
  const bool sm90 = random() % 3 != 0;
  const size_t records = random() % 2 == 0 ? 4 : 16;
  c.fill(random());
  CAPTURE(c.describe(), lengths, sm90, records);
  check(c, lengths, 1, emulated(sm90, records, records == 4 ? 1 : 16), roundingsOf(c.dataType), true);
}

TEST_CASE("chains of the delta rule overlap with the preparation of their window if SMs remain for it") {
  const bool fits = GENERATE(true, false);
  constexpr size_t kChunks = 8, kTokens = kChunks * delta::kRows;
  auto c = makeCase(seqparAttnKda, kTokens, DecayStrength::Weak);
  c.dataType = seqparBfloat16;
  c.fill(1);
  const int chains = static_cast<int>(c.batch * c.heads * ((c.dv + delta::half::kColumns - 1) / delta::half::kColumns));
  const int sms = chains + static_cast<int>(c.batch * c.heads) * (fits ? 8 : 4);
  std::vector<delta::Task> prepared;
  Rank rank(c, 0, kTokens, true, 1, [&](const Shard& shard, Exec& exec) {
    return std::make_unique<DeltaWindows>(shard, exec, std::make_unique<CountedSteps>(prepared, sms), 2 * kChunks,
                                          fitsHalf(shard), 1);
  });
  rank.exec.begin(nullptr);
  const std::vector<float> zeros(c.states(), 0.0f);
  rank.passes->forwardAlone(rank.in, rank.out.tensor, zeros.data(), rank.final.data());
  REQUIRE(prepared.size() == 1);
  const delta::Task& task = prepared.front();
  REQUIRE((task.marks != nullptr) == fits);
  if (!fits) return;
  REQUIRE(task.leftSms == chains);
  for (int i = 0; i < delta::markCount(task); ++i) REQUIRE(task.marks[i] == 0);
}

TEST_CASE("chains of the delta rule that overlap with the preparation of records agree with the recurrence") {
  const seqpar::test::Seed seed;
  auto c = makeCase(seqparAttnKda, 200, DecayStrength::Mixed);
  c.dataType = seqparBfloat16;
  c.dv = 72;
  c.fill(seed);
  CAPTURE(c.describe());
  check(c, {200}, 1, emulated(true, 3, 1, false, 64), roundingsOf(c.dataType));
}

TEST_CASE("a window of the delta rule is prepared in parts, but not with decays of channels") {
  const int family = GENERATE(seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda);
  constexpr size_t kChunks = 8, kTokens = kChunks * delta::kRows;
  auto c = makeCase(family, kTokens, DecayStrength::Weak);
  c.dataType = seqparBfloat16;
  c.fill(1);
  CAPTURE(c.describe());
  std::vector<delta::Task> prepared;
  Rank rank(c, 0, kTokens, true, 1, [&](const Shard& shard, Exec& exec) {
    return std::make_unique<DeltaWindows>(shard, exec, std::make_unique<CountedSteps>(prepared), 2 * kChunks,
                                          fitsHalf(shard), 1);
  });
  rank.exec.begin(nullptr);
  const std::vector<float> zeros(c.states(), 0.0f);
  rank.passes->forwardAlone(rank.in, rank.out.tensor, zeros.data(), rank.final.data());
  REQUIRE(prepared.size() == (family == seqparAttnKda ? 1 : 4));
  int chunks = 0;
  for (const delta::Task& task : prepared) {
    CHECK(task.first == chunks);
    CHECK(task.overlaps == (chunks > 0));
    CHECK(task.stride == kChunks);
    chunks += task.count;
  }
  CHECK(chunks == kChunks);
}

TEST_CASE("the backward of the delta rule prepares no window whose records the forward has left in the reserve") {
  const bool reserves = GENERATE(true, false), alone = GENERATE(true, false);
  constexpr size_t kWindows = 3, kTokens = kWindows * 2 * delta::kRows;
  auto c = makeCase(seqparAttnKda, kTokens, DecayStrength::Weak);
  c.dataType = seqparBfloat16;
  c.fill(1);
  CAPTURE(c.describe(), reserves, alone);
  std::vector<delta::Task> prepared;
  Rank rank(c, 0, kTokens, alone, 1, [&](const Shard& shard, Exec& exec) {
    return std::make_unique<DeltaWindows>(withReserve(shard, reserves), exec, std::make_unique<CountedSteps>(prepared),
                                          2 * shard.allHeads(), true);
  });
  const size_t records = kTokens / delta::kRows * rank.shard.allHeads();
  CHECK(rank.reserve.size() >= (reserves ? records * 2 * delta::kRows * (3 * c.dk + c.dv + 2 * delta::kRows) : 0));
  CHECK((reserves || rank.reserve.empty()));
  rank.exec.begin(nullptr);
  const std::vector<float> zeros(c.states(), 0.0f);
  for (int call = 0; call < 2; ++call) {
    prepared.clear();
    if (alone) {
      rank.passes->forwardAlone(rank.in, rank.out.tensor, zeros.data(), nullptr);
    } else {
      rank.passes->states(rank.in, MapUse::Whole);
      rank.passes->outputs(rank.in, rank.out.tensor, zeros.data());
    }
    CHECK(prepared.size() == (alone || reserves ? kWindows : 2 * kWindows));
    prepared.clear();
    if (alone) {
      rank.passes->backwardAlone(rank.in, rank.gradients, zeros.data(), zeros.data(), nullptr);
    } else {
      rank.passes->stateGradients(rank.in, rank.gradients, MapUse::Whole);
      rank.passes->recompute(rank.in, zeros.data());
      rank.passes->gradients(rank.in, rank.gradients, zeros.data(), zeros.data());
    }
    CHECK(prepared.empty() == reserves);
  }
}

#ifndef SEQPAR_SANITIZED  // 26,880 emulated threads are more than ThreadSanitizer has memory for
TEST_CASE("the GPU's passes of the delta rule in wide slices agree with the recurrence") {
  const seqpar::test::Seed seed;
  constexpr size_t kTokens = 70;
  auto c = makeCase(seqparAttnGatedDelta, kTokens, DecayStrength::Mixed);
  c.dv = 2200;  // 140 slices of 32 columns are more than the SMs, so CTAs have 64
  c.dataType = seqparBfloat16;
  c.fill(seed);
  CAPTURE(c.describe());
  check(c, {kTokens}, 1, emulated(false, 4), roundingsOf(c.dataType));
  // With slices of the product of the chunks' matrices.
  check(c, {kTokens - 4, 4}, 1, emulated(false, 4), roundingsOf(c.dataType));
}
#endif

/// Some lanes of a warp recompute sums that are not finite: all of its lanes must arrive where these wait.
TEST_CASE("an infinite value does not stop the passes of the delta rule, nor reach another sequence") {
  const int family = GENERATE(seqparAttnGatedDelta, seqparAttnKda), type = GENERATE(seqparBfloat16, seqparFloat16);
  const bool sm90 = type == seqparBfloat16, wide = GENERATE(false, true);
  if (!covers(static_cast<size_t>(family) + 1, sm90, wide, 2)) return;
  const seqpar::test::Seed seed;
  constexpr size_t kTokens = 90, kSecond = 70;
  auto c = makeCase(family, kTokens, DecayStrength::Weak);
  if (wide) c.dk = 72;  // products of states by warpgroups, with decays of channels
  c.dataType = c.betaType = type;
  c.normalize = true;
  c.cuSeqlens = {0, kSecond, kTokens};
  c.fill(seed);
  CAPTURE(c.describe());
  const LinearReference expected(c, {0, kTokens});
  c.v[3] = std::numeric_limits<float>::infinity();
  c.dOut[5] = -std::numeric_limits<float>::infinity();
  Rank rank(c, 0, kTokens, true, 1, emulated(sm90, 4));
  rank.exec.begin(nullptr);
  const std::vector<float> zeros(c.states(), 0.0f);
  rank.passes->forwardAlone(rank.in, rank.out.tensor, zeros.data(), rank.final.data());
  const std::vector<float>& dFinal = c.hasFinalGradient ? c.dFinal : zeros;
  rank.passes->backwardAlone(rank.in, rank.gradients, zeros.data(), dFinal.data(), rank.dBefore.data());
  const double terms = static_cast<double>(3 * kTokens + c.dk + c.dv + 100) + roundingsOf(type);
  const auto compare = [&](const Bounded& all, const std::vector<float>& found, size_t width) {
    const auto second = static_cast<std::ptrdiff_t>(kSecond * width);
    return farFrom(slice(c, all, width, kSecond, kTokens), {found.begin() + second, found.end()}, terms, type);
  };
  CHECK(compare(expected.out, rank.out.get(), c.heads * c.dv) == "");
  CHECK(compare(expected.dq, rank.dq.get(), c.keyHeads * c.dk) == "");
  CHECK(compare(expected.dv, rank.dv.get(), c.heads * c.dv) == "");
}

/// Products in which a factor of 0 discards a key that is not finite.
TEST_CASE("a decay of 0 separates tokens from an infinite key") {
  const bool sm90 = GENERATE(false, true);
  const int type = GENERATE(seqparBfloat16, seqparFloat16);
  const seqpar::test::Seed seed;
  constexpr size_t kTokens = 60, kReset = 20;
  auto c = makeCase(seqparAttnGatedDelta, kTokens, DecayStrength::Weak);
  c.dataType = type;
  c.hasInitial = c.hasFinalGradient = false;
  c.fill(seed);
  CAPTURE(c.describe(), sm90);
  for (size_t head = 0; head < c.heads; ++head)
    c.gate[kReset * c.heads + head] = -std::numeric_limits<float>::infinity();
  const LinearReference expected(c, {0, kTokens});
  for (size_t i = 0; i < c.keyHeads * c.dk; i += 3)
    c.k[5 * c.keyHeads * c.dk + i] = std::numeric_limits<float>::infinity();
  Rank rank(c, 0, kTokens, true, 1, emulated(sm90, 4));
  rank.exec.begin(nullptr);
  const std::vector<float> zeros(c.states(), 0.0f);
  rank.passes->forwardAlone(rank.in, rank.out.tensor, zeros.data(), rank.final.data());
  rank.passes->backwardAlone(rank.in, rank.gradients, zeros.data(), zeros.data(), rank.dBefore.data());
  const double terms = static_cast<double>(3 * kTokens + c.dk + c.dv + 100) + roundingsOf(type);
  const auto compare = [&](const Bounded& all, const std::vector<float>& found, size_t width) {
    const auto behind = static_cast<std::ptrdiff_t>(kReset * width);
    return farFrom(slice(c, all, width, kReset, kTokens), {found.begin() + behind, found.end()}, terms, type);
  };
  CHECK(compare(expected.out, rank.out.get(), c.heads * c.dv) == "");
  CHECK(compare(expected.dq, rank.dq.get(), c.keyHeads * c.dk) == "");
  CHECK(compare(expected.dk, rank.dk.get(), c.keyHeads * c.dk) == "");
  CHECK(compare(expected.dv, rank.dv.get(), c.heads * c.dv) == "");
}

/// Relative errors of decays of channels, heads of 128, bf16 tensors: at most those of flash-linear-attention, measured
/// with inputs of the same distributions and 1024 tokens (docs/perf/notes/2026-11-28-delta-rule.md).
TEST_CASE("errors of the delta rule with decays of channels are at most another library's") {
  struct Errors {
    float divisor;
    double out, dq, dk, dv, dGate, dBeta;
  };
  const auto most = GENERATE(Errors{16, 3.9e-3, 3.5e-3, 3.6e-3, 3.5e-3, 3.4e-3, 3.5e-3},
                             Errors{1, 3.4e-3, 2.9e-3, 2.9e-3, 3.0e-3, 2.5e-3, 3.0e-3});
  constexpr size_t kTokens = 512, kDim = 128;
  auto c = makeCase(seqparAttnKda, kTokens, DecayStrength::Weak);
  c.heads = c.keyHeads = 1;
  c.dk = c.dv = kDim;
  c.dataType = c.betaType = seqparBfloat16;
  c.scale = 1 / std::sqrt(static_cast<float>(kDim));
  c.hasInitial = c.hasFinalGradient = false;
  c.fill(1);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto rounded = [](float x) { return ptx::lowOf<Bf16>(ptx::pack<Bf16>(x, 0)); };
  const auto sigmoid = [&] { return 1 / (1 + std::exp(-normal(random))); };
  const auto unit = [&](std::vector<float>& rows) {
    for (size_t t = 0; t < kTokens; ++t) {
      const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(t * kDim), end = begin + kDim;
      std::generate(begin, end, [&] { return normal(random); });
      const float length = std::sqrt(std::inner_product(begin, end, begin, 0.0F));
      std::transform(begin, end, begin, [&](float x) { return rounded(x / length); });
    }
  };
  unit(c.q);
  unit(c.k);
  for (auto* values : {&c.v, &c.dOut}) {
    for (float& x : *values) x = rounded(normal(random));
  }
  for (float& x : c.gate) x = std::log(sigmoid()) / most.divisor;
  for (float& x : c.beta) x = rounded(sigmoid());
  const LinearReference expected(c, {0, kTokens});
  Rank rank(c, 0, kTokens, true, 1, emulated(true, 4));
  rank.exec.begin(nullptr);
  const std::vector<float> zeros(c.states(), 0.0f);
  rank.passes->forwardAlone(rank.in, rank.out.tensor, zeros.data(), rank.final.data());
  rank.passes->backwardAlone(rank.in, rank.gradients, zeros.data(), zeros.data(), rank.dBefore.data());
  const auto error = [](const Bounded& exact, const std::vector<float>& found) {
    double squares = 0, all = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      squares += std::pow(static_cast<double>(found[i]) - exact.value[i], 2);
      all += std::pow(exact.value[i], 2);
    }
    return std::sqrt(squares / all);
  };
  CAPTURE(most.divisor);
  CHECK(error(expected.out, rank.out.get()) <= most.out);
  CHECK(error(expected.dq, rank.dq.get()) <= most.dq);
  CHECK(error(expected.dk, rank.dk.get()) <= most.dk);
  CHECK(error(expected.dv, rank.dv.get()) <= most.dv);
  CHECK(error(expected.dGate, rank.dGate.get()) <= most.dGate);
  CHECK(error(expected.dBeta, rank.dBeta.get()) <= most.dBeta);
}

}  // namespace
