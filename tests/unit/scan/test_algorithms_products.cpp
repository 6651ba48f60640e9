// Factors above 1: products of the factors of several positions overflow although no state does.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "algorithm_runs.h"
#include "reference_scan.h"
#include "scan_draw.h"
#include "unit/seed.h"

namespace {

using namespace seqpar;
using namespace seqpar::test;

/// Two positions of factors of about 1e25 after two of about 1e-25, and so on, random in their last bits; matrices are
/// diagonal.
void setFactors(ScanCase& c, std::mt19937_64& random) {
  std::uniform_real_distribution<float> near(0.5f, 2.0f);
  const size_t dk = c.spec.dk;
  for (int position = 0; position < c.spec.size; ++position) {
    auto& transition = c.ranks[static_cast<size_t>(c.spec.rankAt(position))].transition;
    const float size = position / 2 % 2 == 0 ? 1e25f : 1e-25f;
    for (size_t i = 0; i < transition.size(); ++i) {
      const bool off = c.spec.op == seqparScanMatrix && i / dk % dk != i % dk;
      transition[i] = off ? 0 : size * near(random);
    }
  }
}

/// States of 0 after an initial state of about 1e-30, or of 0.
ScanCase largeFactors(const ScanSpec& spec, bool zeros, std::mt19937_64& random) {
  ScanCase c = makeScanCase(spec, Numbers::Random, random());
  for (auto& rank : c.ranks) std::fill(rank.state.begin(), rank.state.end(), 0.0f);
  for (float& number : c.initial) number *= zeros ? 0 : 1e-30f;
  setFactors(c, random);
  return c;
}

ScanSpec drawLarge(std::mt19937_64& random, int size) {
  ScanSpec spec;
  spec.size = size;
  spec.op = pick(random, {seqparScanScalar, seqparScanDiag, seqparScanMatrix});
  spec.direction = pick(random, {seqparForward, seqparReverse});
  spec.heads = 1 + random() % 3;
  spec.dk = 1 + random() % 5;
  spec.dv = 1 + random() % 20;
  spec.initial = true;
  return spec;
}

}  // namespace

TEST_CASE("factors whose products overflow: all algorithms except DOUBLING are correct") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    if (row.products == Products::Always) continue;
    for (int round = 0; round < 30; ++round) {
      const ScanSpec spec = drawLarge(random, 2 + static_cast<int>(random() % 8));
      const ScanCase scanCase = largeFactors(spec, round % 2 == 0, random);
      const auto nodes = randomNodes(random, spec.size, 3);
      const std::vector<Outputs> outputs(static_cast<size_t>(spec.size), Outputs::Both);
      CAPTURE(row.name, round, spec);
      MemoryLanes lanes(spec.size, {});
      auto buffers = runScan(scanCase, row.id, 1, outputs, nodes, lanes);
      const auto expected = referenceScan(scanCase);
      for (size_t rank = 0; rank < buffers.size(); ++rank) {
        CHECK(firstWrong(buffers[rank], spec, expected[rank], Numbers::Random) == "");
      }
    }
  }
}

TEST_CASE("DOUBLING multiplies factors only with more than four ranks, as documented in seqpar/scan.h") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int size = 2; size <= 8; ++size) {
    ScanSpec spec = drawLarge(random, size);
    spec.op = seqparScanDiag;
    ScanCase scanCase = largeFactors(spec, true, random);
    for (auto& rank : scanCase.ranks) std::fill(rank.transition.begin(), rank.transition.end(), 1e25f);
    const std::vector<int> nodes(static_cast<size_t>(size), 0);
    const std::vector<Outputs> outputs(static_cast<size_t>(size), Outputs::Both);
    CAPTURE(spec);
    MemoryLanes lanes(size, {});
    auto buffers = runScan(scanCase, seqparScanDoubling, 1, outputs, nodes, lanes);
    bool allZero = true;
    for (auto& rank : buffers) {
      for (const float number : rank.totalValues()) allZero = allZero && number == 0;
    }
    CHECK(allZero == !multipliesAmong(scanAlgorithm(seqparScanDoubling), size));
  }
}
