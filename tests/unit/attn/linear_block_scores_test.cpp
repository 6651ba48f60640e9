// Scores within blocks of 16 tokens with channel decays (kernels/attn/linear/block_scores.h), by one emulated warp,
// compared with fp64.
#include "kernels/attn/linear/block_scores.h"

#include <cmath>
#include <random>

#include "linear_backward_check.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::attn;

namespace {

constexpr int kChannels = BlockMatrix::kChannels;
constexpr double kUnderflow = 0x1p-100;  // error of a score with factors below fp32's range

/// Two channels of a thread.
struct Pair {
  float of[2];
  static Pair filled(float x) { return {{x, x}}; }
  static Pair multiply(const Pair& a, const Pair& b) { return {{a.of[0] * b.of[0], a.of[1] * b.of[1]}}; }
};

struct BlockCase {
  float q[kBlockTokens][kChannels], k[kBlockTokens][kChannels], decays[kBlockTokens][kChannels];

  /// The score of query t and key s, and the sum of its terms' magnitudes.
  std::pair<double, double> expected(int t, int s) const {
    double sum = 0, magnitude = 0;
    for (int channel = 0; channel < kChannels; ++channel) {
      double term = double{q[t][channel]} * k[s][channel];
      for (int i = s + 1; i <= t; ++i) term *= decays[i][channel];
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }
};

using Scores = std::vector<float>;  // [query][key]

template <int H>
void addLevel(const BlockCase& c, const Pair (&decays)[kBlockTokens], char* x, BlockScores (&scores)[1]) {
  const int lane = ptx::thread();
  eachFactor<H, Pair>(decays, [&](int t, const Pair& factors) {
    const auto& from = (t & H) != 0 ? c.q[t] : c.k[t];
    ptx::storePair(reinterpret_cast<float*>(x + BlockMatrix::offset(t, 2 * lane)), factors.of[0] * from[2 * lane],
                   factors.of[1] * from[2 * lane + 1]);
  });
  ptx::syncwarp();
  BlockScores::addLevel(scores, x, H, lane);
  ptx::syncwarp();
}

Scores scoresOf(const BlockCase& c, uint64_t seed) {
  Scores result(kBlockTokens * kBlockTokens, NAN);
  emulator::run(1, 32, BlockMatrix::kBytes, seed, [&] {
    const int lane = ptx::thread();
    Pair decays[kBlockTokens];
    for (int t = 0; t < kBlockTokens; ++t) decays[t] = {{c.decays[t][2 * lane], c.decays[t][2 * lane + 1]}};
    BlockScores scores[1];
    addLevel<8>(c, decays, ptx::sharedMemory(), scores);
    addLevel<4>(c, decays, ptx::sharedMemory(), scores);
    addLevel<2>(c, decays, ptx::sharedMemory(), scores);
    addLevel<1>(c, decays, ptx::sharedMemory(), scores);
    const ptx::AccumulatorLayout layout{lane};
    for (int n = 0; n < 2; ++n) {
      for (int e = 0; e < 4; ++e) {
        result[static_cast<size_t>(layout.row(0, e) * kBlockTokens + layout.column(8 * n, e))] = scores[0].of[n][e];
      }
    }
  });
  return result;
}

constexpr double kEachBound = 0x1.8p-10;  // TF32 in both factors, relative to the magnitudes of the terms

/// decayOf(random number from 0 to 1): a decay. `bound`: of the error of all scores, relative to their norm.
template <class DecayOf>
void checkScores(const DecayOf& decayOf, uint64_t seed, double bound = 0x1p-11) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(0, 1), symmetric(-1, 1);
  const auto rounded = [](float x) { return ptx::lowOf<Bf16>(ptx::pack<Bf16>(x, 0)); };
  BlockCase c;
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int channel = 0; channel < kChannels; ++channel) {
      c.q[t][channel] = rounded(symmetric(random));
      c.k[t][channel] = rounded(symmetric(random));
      c.decays[t][channel] = decayOf(uniform(random));
    }
  }
  const Scores scores = scoresOf(c, seed);
  double difference = 0, total = 0;
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int s = 0; s < kBlockTokens; ++s) {
      CAPTURE(seed, t, s);
      const float score = scores[static_cast<size_t>(t * kBlockTokens + s)];
      if (s >= t) {
        CHECK(score == 0);  // those of tokens with themselves are not in any level
        continue;
      }
      const auto [expected, magnitude] = c.expected(t, s);
      CHECK(std::abs(score - expected) <= kEachBound * magnitude + kUnderflow);
      difference += (score - expected) * (score - expected);
      total += expected * expected;
    }
  }
  CAPTURE(seed, difference, total);
  CHECK(std::sqrt(difference) <= bound * std::sqrt(total) + kBlockTokens * kUnderflow);
}

}  // namespace

TEST_CASE("scores within blocks have the precision of TF32 with any decays") {
  const seqpar::test::Seed seed;
  checkScores([](float x) { return std::exp2(-0.1F * x); }, seed);
  // One or two terms may have most of the norm: rounding errors then do not cancel.
  checkScores([](float x) { return std::exp2(-30 * x); }, seed + 1, kEachBound);
  checkScores([](float x) { return std::exp2(-100000 * x); }, seed + 2, kEachBound);
  checkScores([](float x) { return x < 0.1F ? 0.F : x < 0.2F ? 1.F : std::exp2(-x); }, seed + 3);
}

TEST_CASE("scores within blocks are exact if decays are powers of 2 and few") {
  const seqpar::test::Seed seed;
  BlockCase c;
  std::mt19937_64 random(seed);
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int channel = 0; channel < kChannels; ++channel) {
      c.q[t][channel] = static_cast<float>(random() % 7) - 3;
      c.k[t][channel] = static_cast<float>(random() % 7) - 3;
      c.decays[t][channel] = random() % 2 == 0 ? 1.F : 0.F;
    }
  }
  const Scores scores = scoresOf(c, seed);
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int s = 0; s < t; ++s) {
      CAPTURE(seed, t, s);
      CHECK(scores[static_cast<size_t>(t * kBlockTokens + s)] == c.expected(t, s).first);
    }
  }
}
