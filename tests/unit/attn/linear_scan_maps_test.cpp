// Pass 1 on sm_90 for maps that only a scan between ranks reads, on an emulated CTA: it leaves out chunks that the
// decays of others have forgotten. The scan's result is that of all maps.
#include "linear_forward_sm90_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::test;

namespace {

struct ScanMaps {
  std::vector<float> states, transitions;
  int missing = 0;  ///< maps
};

std::vector<int> neededChunks(const LinearProblem& problem, bool backward, uint64_t seed) {
  using forward_sm90::NeededChunks;
  std::vector<int> needed(static_cast<size_t>(problem.batch * problem.heads), -1);
  const NeededChunks task{problem, needed.data(), backward};
  emulator::run(static_cast<int>(NeededChunks::ctas(problem)), NeededChunks::kThreads, sizeof(NeededChunks::Memory),
                seed, [&] { task.run(*reinterpret_cast<NeededChunks::Memory*>(ptx::sharedMemory())); });
  return needed;
}

/// Token decays of heads that forget after a few tokens, some segments, or never.
struct ScanMapsCase {
  LinearProblem problem;
  Segments segments;
  std::vector<uint16_t> keys, values;
  std::vector<float> gates;

  ScanMapsCase(int dk, int dv, int64_t tokens, std::mt19937_64& random) {
    constexpr int kHeads = 6, kQkHeads = 3;
    constexpr float kDecays[kHeads] = {-0.0005F, -0.7F, -3, -0.3F, -0.15F, -200};
    const auto draw = [&](int64_t count) {
      std::vector<uint16_t> numbers(static_cast<size_t>(count));
      std::uniform_real_distribution<float> uniform(-1, 1);
      for (auto& number : numbers) {
        number = static_cast<uint16_t>(ptx::pack<Bf16>(uniform(random), 0.F) & 0xffffU);
      }
      return numbers;
    };
    problem.batch = 2;
    problem.tokens = tokens;
    problem.heads = kHeads;
    problem.qkHeads = kQkHeads;
    problem.dk = dk;
    problem.dv = dv;
    problem.type = seqparBfloat16;
    problem.gate = Gate::Token;
    keys = draw(problem.batch * tokens * kQkHeads * dk);
    values = draw(problem.batch * tokens * kHeads * dv);
    for (int64_t i = 0; i < problem.batch * tokens * kHeads; ++i) {
      gates.push_back(kDecays[i % kHeads] * (0.5F + static_cast<float>(random() % 1000) / 1000));
    }
    problem.k = problem.q = {keys.data(), tokens * kQkHeads * dk, int64_t{kQkHeads} * dk, dk};
    problem.v = {values.data(), tokens * kHeads * dv, int64_t{kHeads} * dv, dv};
    problem.gates = {gates.data(), tokens * kHeads, kHeads, 1};
    segments = {static_cast<int>((tokens + 127) / 128), 128};
  }

  template <Pass P>
  ScanMaps run(const int* needed, uint64_t seed) const {
    const int64_t size = int64_t{problem.dk} * problem.dv, heads = problem.batch * problem.heads;
    std::vector<float> states(static_cast<size_t>(heads * segments.count * size), NAN),
        logs(static_cast<size_t>(heads * segments.count), NAN);
    SegmentStates pass{problem, segments, {0, problem.heads}, {states.data(), logs.data()}};
    pass.content = Maps::PerSegment;
    pass.allSegments = true;
    runStates<Bfloat16, P>(pass, problem.k, problem.v, 3, seed, needed);
    ScanMaps result;
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<float> all(static_cast<size_t>(size), 0.F);
      float decay = 1;
      for (int step = 0; step < segments.count; ++step) {
        const int segment = P == Pass::Forward ? segments.count - 1 - step : step;
        const auto map = static_cast<size_t>(head * segments.count + segment);
        if (std::isnan(logs[map])) ++result.missing;
        if (decay == 0) continue;
        for (size_t i = 0; i < all.size(); ++i) all[i] += decay * states[map * all.size() + i];
        decay *= std::exp2(logs[map] * kLog2e);
      }
      result.states.insert(result.states.end(), all.begin(), all.end());
      result.transitions.push_back(decay);
    }
    return result;
  }

  template <Pass P>
  void check(uint64_t seed) const {
    INFO("backward " << (P == Pass::Backward) << ", keys " << problem.dk << ", values " << problem.dv << ", tokens "
                     << problem.tokens << ", seed " << seed);
    const auto needed = neededChunks(problem, P == Pass::Backward, seed);
    const ScanMaps all = run<P>(nullptr, seed), some = run<P>(needed.data(), seed);
    CHECK(all.missing == 0);
    CHECK(some.missing > 0);
    CHECK(some.missing < segments.count * problem.batch * problem.heads);
    CHECK(some.transitions == all.transitions);
    CHECK(seqpar::test::relativeError(backward::test::wide(some.states), backward::test::wide(all.states)) <= 1e-6);
  }
};

}  // namespace

TEST_CASE("pass 1 of sm_90 leaves out maps that the scan between ranks does not read") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& [dk, dv] : {std::pair{128, 64}, {96, 80}, {144, 64}}) {
    const ScanMapsCase c(dk, dv, 800 + static_cast<int64_t>(random() % 200), random);
    c.check<Pass::Forward>(seed);
    c.check<Pass::Backward>(seed);
  }
}

TEST_CASE("chunks that a rank's map depends on") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const int64_t tokens : {1, 63, 64, 65, 700, 8192, 8193, 20000}) {
    LinearProblem problem;
    problem.batch = 2;
    problem.tokens = tokens;
    problem.heads = 3;
    problem.gate = Gate::Token;
    std::vector<float> gates;
    for (int64_t i = 0; i < problem.batch * tokens * problem.heads; ++i) {
      constexpr float kDecays[] = {-0.006F, -0.5F, -0.04F};
      gates.push_back(kDecays[i % problem.heads] * (0.5F + static_cast<float>(random() % 1000) / 1000));
    }
    problem.gates = {gates.data(), tokens * problem.heads, problem.heads, 1};
    for (const bool backward : {false, true}) {
      const auto needed = neededChunks(problem, backward, seed);
      for (int64_t i = 0; i < problem.batch * problem.heads; ++i) {
        INFO("tokens " << tokens << ", backward " << backward << ", head " << i << ", seed " << seed);
        const int64_t chunks = (tokens + kChunkTokens - 1) / kChunkTokens, at = needed[static_cast<size_t>(i)];
        double sum = 0, before = 0;  // of the needed chunks, and of all but the last of these
        REQUIRE(at >= 1);
        REQUIRE(at <= chunks);
        for (int64_t t = 0; t < tokens; ++t) {
          const int64_t chunk = t / kChunkTokens, place = backward ? chunk : chunks - 1 - chunk;
          const double decay =
              gates[static_cast<size_t>((i / problem.heads * tokens + t) * problem.heads + i % problem.heads)] *
              1.4426950408889634;
          if (place < at) sum += decay;
          if (place < at - 1) before += decay;
        }
        constexpr double kUnread = forward_sm90::NeededChunks::kUnreadLog2, kRounding = 1e-2;
        if (at < chunks) CHECK(sum < kUnread + kRounding);
        CHECK(before > kUnread - kRounding);
      }
    }
  }
}
