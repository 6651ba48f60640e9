// The passes of linear attention on a host.
#include "common/covering.h"
#include "unit/attn/linear_passes_check.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::linear::test;  // NOLINT(google-build-using-namespace)

TEST_CASE("passes agree with the recurrence, in one piece, in segments and on ranks") {
  const int family = GENERATE(range(1, SEQPAR_ATTN_FAMILIES));
  const auto strength = GENERATE(DecayStrength::Weak, DecayStrength::Strong, DecayStrength::Mixed);
  if (seqpar::test::kSanitized && strength == DecayStrength::Strong) return;
  const seqpar::test::Seed seed;
  for (const auto& lengths : {std::vector<size_t>{1}, {67}, {300}, {64, 0, 9}, {0, 130, 71, 0}}) {
    auto c = makeCase(family, std::accumulate(lengths.begin(), lengths.end(), size_t{0}), strength);
    c.batch = lengths.size() == 2 ? 1 : 2;
    c.normalize = c.delta() && lengths.size() % 2 == 0;
    c.fill(seed);
    for (const int threads : seqpar::test::thinned({3, 1})) {
      CAPTURE(c.describe(), lengths, threads);
      check(c, lengths, threads);
    }
  }
}

TEST_CASE("maps of segments of a matrix compose") {
  const int family = GENERATE(range(1, SEQPAR_ATTN_FAMILIES));
  if (seqpar::attn::linear::findFamily(family)->transition != seqparScanMatrix) return;
  const seqpar::test::Seed seed;
  for (const auto& lengths : {std::vector<size_t>{700}, {600, 20, 530}}) {
    auto c = makeCase(family, std::accumulate(lengths.begin(), lengths.end(), size_t{0}), DecayStrength::Weak);
    c.mostBeta = 2;
    c.keys = Keys::Walk;
    c.fill(seed);
    CAPTURE(c.describe(), lengths);
    check(c, lengths, 3);
  }
}

TEST_CASE("packed sequences have separate states") {
  const int family = GENERATE(range(1, SEQPAR_ATTN_FAMILIES));
  const seqpar::test::Seed seed;
  for (const auto& starts : {std::vector<int64_t>{0, 200}, {0, 0, 1, 60, 64, 64, 190, 200, 200}, {0, 128, 200}}) {
    auto c = makeCase(family, 200, DecayStrength::Mixed);
    c.cuSeqlens = starts;
    c.fill(seed);
    for (const auto& lengths : {std::vector<size_t>{200}, {60, 0, 140}, {128, 72}, {1, 0, 63, 126, 10}}) {
      CAPTURE(c.describe(), lengths);
      check(c, lengths, 3);
    }
  }
}

}  // namespace
