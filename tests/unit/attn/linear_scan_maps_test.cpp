// Pass 1 on sm_90 for maps that only a scan between ranks reads, on an emulated CTA: it leaves out chunks that the
// decays of others have forgotten, and divides the others equally. The scan's result is that of all maps.
#include <algorithm>

#include "common/covering.h"
#include "kernels/attn/linear/forward_sm90/needed_chunks_sm90.cuh"
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

  /// The maps by `ctas` CTAs, composed as by a scan.
  template <Pass P>
  ScanMaps run(const int* needed, int ctas, uint64_t seed) const {
    const int64_t size = int64_t{problem.dk} * problem.dv, heads = problem.batch * problem.heads;
    std::vector<float> states(static_cast<size_t>(heads * segments.count * size), NAN),
        logs(static_cast<size_t>(heads * segments.count), NAN);
    SegmentStates pass{problem, segments, {0, problem.heads}, {states.data(), logs.data()}};
    pass.content = Maps::PerSegment;
    pass.allSegments = true;
    runStates<Bfloat16, P>(pass, problem.k, problem.v, ctas, seed, needed);
    ScanMaps result;
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<float> all(static_cast<size_t>(size), 0.F);
      float decay = 1;
      bool more = true;
      for (int step = 0; step < segments.count; ++step) {
        const int segment = P == Pass::Forward ? segments.count - 1 - step : step;
        const auto map = static_cast<size_t>(head * segments.count + segment);
        if (std::isnan(logs[map]) || logs[map] == kNoMap) ++result.missing;
        more = more && decay != 0 && logs[map] != kNoMap;
        if (!more) continue;
        for (size_t i = 0; i < all.size(); ++i) all[i] += decay * states[map * all.size() + i];
        decay *= std::exp2(logs[map] * kLog2e);
        if (decay < kReadDecay) decay = 0;
      }
      result.states.insert(result.states.end(), all.begin(), all.end());
      result.transitions.push_back(decay);
    }
    return result;
  }

  template <Pass P>
  void check(int ctas, uint64_t seed) const {
    INFO("CTAs " << ctas << ", backward " << (P == Pass::Backward) << ", keys " << problem.dk << ", values "
                 << problem.dv << ", tokens " << problem.tokens << ", seed " << seed);
    const auto needed = neededChunks(problem, P == Pass::Backward, seed);
    const ScanMaps all = run<P>(nullptr, ctas, seed), some = run<P>(needed.data(), ctas, seed);
    CHECK(all.missing == 0);
    CHECK(some.missing > 0);
    CHECK(some.missing < segments.count * problem.batch * problem.heads);
    for (size_t i = 0; i < all.transitions.size(); ++i) {
      CHECK(std::abs(some.transitions[i] - all.transitions[i]) <= 1e-4F * all.transitions[i] + 0x1p-124F);
    }
    // Other pieces round decayed tokens to bf16 otherwise.
    constexpr double kRounding = 8e-3;
    const auto size = static_cast<std::ptrdiff_t>(problem.dk * problem.dv);
    for (std::ptrdiff_t head = 0; head < problem.batch * problem.heads; ++head) {
      const auto of = [&](const std::vector<float>& states) {
        return backward::test::wide(
            std::vector<float>(states.begin() + head * size, states.begin() + (head + 1) * size));
      };
      INFO("head " << head);
      CHECK(seqpar::test::relativeError(of(some.states), of(all.states)) <= kRounding);
    }
  }
};

}  // namespace

TEST_CASE("pass 1 of sm_90 leaves out maps that the scan between ranks does not read") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  const int64_t tokens = seqpar::test::kSanitized ? 400 : 800;
  for (const auto& [dk, dv] : seqpar::test::thinned({std::pair{144, 64}, {96, 80}, {128, 64}}, 2)) {
    const ScanMapsCase c(dk, dv, tokens + static_cast<int64_t>(random() % 200), random);
    const int ctas = 1 + static_cast<int>(random() % 8);
    c.check<Pass::Forward>(ctas, seed);
    c.check<Pass::Backward>(ctas, seed);
  }
}

/// Each needed chunk is in one piece; the pieces of a head are consecutive; ranges have about equal work.
template <Pass P>
void checkPieces(const LinearProblem& problem, const std::vector<int>& needed, int segments, int together, int ctas,
                 uint64_t seed) {
  using forward_sm90::NeededPieces;
  INFO("backward " << (P == Pass::Backward) << ", segments " << segments << ", together " << together << ", CTAs "
                   << ctas << ", heads " << problem.heads << " of " << problem.qkHeads << ", seed " << seed);
  REQUIRE(NeededPieces::supports(problem, segments));
  std::vector<std::vector<forward_sm90::Sweep>> pieces;
  emulator::run(1, forward_sm90::kThreads, NeededPieces::kBytes, seed, [&] {
    NeededPieces found(ptx::sharedMemory());
    found.find(needed.data(), problem, segments, together, ctas);
    if (threadIdx.x != 0) return;
    for (int range = 0; range < found.ranges(); ++range) {
      pieces.emplace_back();
      found.each<P>(range, problem, segments, together, [&](const auto& piece) { pieces.back().push_back(piece); });
    }
  });
  const int64_t chunks = (problem.tokens + kChunkTokens - 1) / kChunkTokens;
  const auto chunksOf = [](const forward_sm90::Sweep& piece) {
    return (piece.end - piece.begin + kChunkTokens - 1) / kChunkTokens;
  };
  std::vector<int64_t> done(needed.size(), 0), maps(needed.size(), 0), length;
  std::vector<bool> ended(needed.size(), false);
  for (const auto& range : pieces) {
    length.push_back(0);
    for (const auto& piece : range) {
      length.back() += chunksOf(piece);
      CHECK((together == 1) == (piece.second == piece.head));
      CHECK(qkHead(problem, piece.head) == qkHead(problem, piece.second));
      const auto head = static_cast<size_t>(piece.batch * problem.heads + piece.head),
                 second = static_cast<size_t>(piece.batch * problem.heads + piece.second);
      CHECK(piece.segment == (P == Pass::Forward ? segments - 1 - maps[head] : maps[head]));
      CHECK(piece.segment >= 0);
      CHECK(piece.segment < segments);
      const bool starts = P == Pass::Forward
                              ? piece.end == std::min((chunks - done[head]) * kChunkTokens, problem.tokens)
                              : piece.begin == done[head] * kChunkTokens;
      CHECK(starts);
      CHECK(!ended[head]);
      done[head] += chunksOf(piece);
      ++maps[head];
      ended[head] = piece.isLast;
      done[second] = done[head];
      maps[second] = maps[head];
      ended[second] = ended[head];
      CHECK(done[head] <= std::max(needed[head], needed[second]));
      CHECK(piece.isLast == (done[head] == std::max(needed[head], needed[second])));
    }
  }
  for (size_t head = 0; head < needed.size(); ++head) CHECK(done[head] >= needed[head]);
  REQUIRE(!length.empty());
  CHECK(length.size() <= static_cast<size_t>(ctas));
  int64_t work = 0;  // with stored maps
  for (size_t head = 0; head < needed.size(); ++head) work += done[head] + NeededPieces::kOfMap;
  const int64_t equal = work / together / ctas + 1, most = std::max(equal, (chunks - 1) / (segments - 1) + 1);
  for (const int64_t each : length) CHECK(each <= most);
}

TEST_CASE("needed chunks are divided equally among CTAs") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 6; ++round) {
    LinearProblem problem;
    problem.batch = 1 + static_cast<int64_t>(random() % 2);
    problem.tokens = 1 + static_cast<int64_t>(random() % 4000);
    problem.qkHeads = 1 + static_cast<int>(random() % 4);
    problem.heads = problem.qkHeads * 2 * (1 + static_cast<int>(random() % 8));
    const auto chunks = static_cast<int>((problem.tokens + kChunkTokens - 1) / kChunkTokens);
    const int most = random() % 2 == 0 ? chunks : 1 + static_cast<int>(random() % static_cast<uint64_t>(chunks));
    std::vector<int> needed(static_cast<size_t>(problem.batch * problem.heads));
    for (int& number : needed) number = 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
    const int segments = 2 + static_cast<int>(random() % 7), ctas = 1 + static_cast<int>(random() % 140);
    for (const int together : {1, 2}) {
      checkPieces<Pass::Forward>(problem, needed, segments, together, ctas, seed);
      checkPieces<Pass::Backward>(problem, needed, segments, together, ctas, seed);
    }
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
