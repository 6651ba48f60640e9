// All algorithms stay within the rounding error that their arithmetic allows.
#include <catch2/catch.hpp>
#include <cmath>

#include "algorithm_runs.h"
#include "base/error.h"
#include "reference_scan.h"
#include "unit/seed.h"

namespace {

using namespace seqpar;
using namespace seqpar::test;

/// The largest error relative to the allowed one.
double excess(const ScanSpec& spec, const ReferenceState& expected, const std::vector<float>& got) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double allowed = relativeBound(spec) * expected.size[i] + absoluteBound(spec);
    const double error = std::abs(static_cast<double>(got[i]) - expected.value[i]);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error / allowed);
  }
  return worst;
}

void checkRandom(const ScanSpec& spec, std::uint64_t seed) {
  const ScanCase scanCase = makeScanCase(spec, Numbers::Random, seed);
  const std::vector<ReferenceRank> expected = referenceScan(scanCase);
  std::mt19937_64 random(seed);
  const std::vector<int> nodes = randomNodes(random, spec.size, 3);
  const std::vector<Outputs> outputs(static_cast<size_t>(spec.size), Outputs::Both);
  MemoryLanes lanes(spec.size, {});
  CAPTURE(spec, seed, nodes);
  for (const seqparScanAlgorithm_t algorithm : allAlgorithms()) {
    std::vector<ScanBuffers> buffers = runScan(scanCase, algorithm, 3, outputs, nodes, lanes, random() % 2 == 0);
    for (int rank = 0; rank < spec.size; ++rank) {
      CAPTURE(algorithm, rank);
      CHECK(excess(spec, expected[rank].prefix, buffers[rank].prefixValues()) <= 1);
      CHECK(excess(spec, expected[rank].total, buffers[rank].totalValues()) <= 1);
    }
  }
}

}  // namespace

TEST_CASE("algorithms stay within their error bound on random numbers") {
  const int size = GENERATE(1, 2, 3, 5, 8);
  const seqparScanOp_t op = GENERATE(seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix);
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparDirection_t direction : {seqparForward, seqparReverse}) {
    for (const seqparDataType_t stateType : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
      for (const seqparDataType_t wireType : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
        ScanSpec spec;
        spec.size = size;
        spec.op = op;
        spec.direction = direction;
        spec.stateType = stateType;
        spec.wireType = wireType;
        spec.heads = 3;
        spec.dk = 9;
        spec.dv = 37;
        spec.initial = true;
        spec.flags = wireType == seqparFloat32;
        const std::uint64_t drawn = random();
        if (op == seqparScanScalar || op == seqparScanDiag) spec.decayForm = static_cast<seqparDecayForm_t>(drawn % 3);
        checkRandom(spec, drawn);
      }
    }
  }
}
