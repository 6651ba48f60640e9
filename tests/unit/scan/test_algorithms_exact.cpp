// All algorithms give the reference's bits if the arithmetic is exact.
#include <catch2/catch.hpp>
#include <limits>

#include "algorithm_runs.h"
#include "base/error.h"
#include "common/covering.h"
#include "reference_scan.h"
#include "unit/seed.h"

namespace {

using namespace seqpar;
using namespace seqpar::test;

constexpr seqparDataType_t kTypes[] = {seqparFloat32, seqparFloat16, seqparBfloat16};
constexpr seqparScanOp_t kOps[] = {seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix};

struct Shape {
  size_t heads, dk, dv;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {1, 3, 2}, {4, 5, 7}, {2, 16, 40}, {6, 8, 33}, {12, 1, 16}};
constexpr size_t kBlocks[] = {1, 2, 3, 7, 50};

template <typename Value, size_t kCount>
Value pick(std::mt19937_64& random, const Value (&values)[kCount]) {
  return values[random() % kCount];
}

ScanSpec fill(ScanSpec spec, std::mt19937_64& random) {
  const Shape shape = pick(random, kShapes);
  spec.heads = shape.heads;
  spec.dk = shape.dk;
  spec.dv = shape.dv;
  spec.sequences = spec.heads % 2 == 0 && random() % 2 == 0 ? spec.heads / 2 : 1;
  spec.flags = random() % 2 == 0;
  spec.initial = random() % 2 == 0;
  if (spec.op == seqparScanScalar || spec.op == seqparScanDiag) {
    spec.decayForm = static_cast<seqparDecayForm_t>(random() % 3);
  }
  return spec;
}

void checkOutputs(std::vector<ScanBuffers>& buffers, const std::vector<ReferenceRank>& expected) {
  for (size_t rank = 0; rank < buffers.size(); ++rank) {
    CAPTURE(rank);
    ScanBuffers& each = buffers[rank];
    if (each.wantsPrefix()) CHECK(differenceFrom(expected[rank].prefix.value, each.prefixValues()) == "");
    if (each.wantsTotal()) CHECK(differenceFrom(expected[rank].total.value, each.totalValues()) == "");
    CHECK(each.inputsIntact());
  }
}

/// One random case of `given`, with all algorithms over one strict mailbox, one after the other.
void checkAlgorithms(const ScanSpec& given, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const ScanSpec spec = fill(given, random);
  const ScanCase scanCase = makeScanCase(spec, Numbers::Exact, random());
  const std::vector<ReferenceRank> expected = referenceScan(scanCase);
  const size_t blocks = pick(random, kBlocks);
  const std::vector<int> nodes = randomNodes(random, spec.size, 1 + static_cast<int>(random() % 4));
  std::vector<Outputs> outputs;
  for (int rank = 0; rank < spec.size; ++rank) outputs.push_back(static_cast<Outputs>(random() % 5));
  MemoryMailboxOptions options;
  if (random() % 2 == 0) {
    options.maxMessage = 3072;
    options.window = 4 * options.maxMessage;
  }
  MemoryLanes lanes(spec.size, options);
  CAPTURE(spec, seed, blocks, nodes, options.maxMessage);
  for (const seqparScanAlgorithm_t algorithm : allAlgorithms()) {
    CAPTURE(algorithm);
    const ScanProblem shape = ScanBuffers(scanCase, 0, Outputs::Both).problem();
    if (!scanFits(scanAlgorithm(algorithm).traffic, shape, spec.size, options.maxMessage, options.window)) {
      MemoryLanes own(spec.size, options);
      try {
        runScan(scanCase, algorithm, blocks, outputs, nodes, own);
        FAIL_CHECK("an algorithm ran that scanFits() calls impossible");
      } catch (const Error& error) {
        CHECK(error.result() == seqparInvalidUsage);
      }
      continue;
    }
    std::vector<ScanBuffers> buffers = runScan(scanCase, algorithm, blocks, outputs, nodes, lanes, blocks % 2 == 0);
    checkOutputs(buffers, expected);
  }
}

void checkAll(int size, int repetitions) {
  std::uint64_t seed = static_cast<std::uint64_t>(size) << 32;
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDirection_t direction : {seqparForward, seqparReverse}) {
      for (const seqparDataType_t stateType : kTypes) {
        for (const seqparDataType_t wireType : kTypes) {
          ScanSpec spec;
          spec.size = size;
          spec.op = op;
          spec.direction = direction;
          spec.stateType = stateType;
          spec.wireType = wireType;
          for (int i = 0; i < repetitions; ++i) checkAlgorithms(spec, ++seed);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("algorithms agree bit for bit with the reference on exact numbers") {
  const int size = GENERATE(1, 2, 3, 4, 5, 7, 8);
  checkAll(size, kSanitized ? 1 : 3);
}

TEST_CASE("algorithms agree bit for bit with the reference on 16 ranks") {
  checkAll(16, 1);
}

TEST_CASE("a factor of 0 and the flags discard NaN and infinity in every algorithm") {
  const seqparScanOp_t op = GENERATE(seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix);
  const seqparDirection_t direction = GENERATE(seqparForward, seqparReverse);
  ScanSpec spec;
  spec.size = 7;
  spec.op = op;
  spec.direction = direction;
  spec.heads = 2;
  spec.dk = 3;
  spec.dv = 20;
  ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 99);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (int position : {1, 3, 4}) {
    std::vector<float>& state = scanCase.ranks[spec.rankAt(position)].state;
    std::fill(state.begin(), state.end(), position == 3 ? infinity : nan);
  }
  // Every element of positions 1 and 3 is forgotten by the next position or the one after it, by a flag or a factor.
  scanCase.ranks[spec.rankAt(2)].flags[0] = SEQPAR_SCAN_CUT;
  if (op != seqparScanSum) {
    std::vector<float>& factors = scanCase.ranks[spec.rankAt(5)].transition;
    std::fill(factors.begin(), factors.end(), 0.0F);
  } else {
    scanCase.ranks[spec.rankAt(5)].flags[0] = SEQPAR_SCAN_RESET_IN;
  }
  const std::vector<ReferenceRank> expected = referenceScan(scanCase);
  const std::vector<Outputs> outputs(static_cast<size_t>(spec.size), Outputs::Both);
  const std::vector<int> nodes = {0, 0, 1, 1, 1, 2, 2};
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  CAPTURE(spec, algorithm);
  MemoryLanes lanes(spec.size, {});
  std::vector<ScanBuffers> buffers = runScan(scanCase, algorithm, 2, outputs, nodes, lanes);
  CHECK(std::isfinite(expected[spec.rankAt(6)].total.value[0]));
  CHECK(std::isnan(expected[spec.rankAt(4)].total.value[0]));
  checkOutputs(buffers, expected);
}

TEST_CASE("a factor of 0 in a matrix discards its row in every algorithm") {
  const seqparDirection_t direction = GENERATE(seqparForward, seqparReverse);
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  ScanSpec spec;
  spec.size = 7;
  spec.op = seqparScanMatrix;
  spec.direction = direction;
  spec.heads = 2;
  spec.dk = 6;
  spec.dv = 20;
  spec.initial = true;
  ScanCase scanCase = makeScanCase(spec, Numbers::Exact, seed);
  // Factors of 0 and 1: products of several ranks' neither cancel nor underflow.
  for (auto& rank : scanCase.ranks) {
    for (float& factor : rank.transition) factor = random() % 4 == 0 ? 1.0F : 0.0F;
  }
  for (size_t i = 0; i < scanCase.initial.size(); ++i) {
    const size_t row = i / spec.dv % spec.dk;
    if (row == 1) scanCase.initial[i] = std::numeric_limits<float>::infinity();
    if (row == 4) scanCase.initial[i] = std::numeric_limits<float>::quiet_NaN();
  }
  // The last position discards all earlier ones.
  auto& last = scanCase.ranks[spec.rankAt(6)].transition;
  std::fill(last.begin(), last.end(), 0.0F);
  const std::vector<Outputs> outputs(static_cast<size_t>(spec.size), Outputs::Both);
  const std::vector<int> nodes = {0, 0, 1, 1, 1, 2, 2};
  CAPTURE(spec, algorithm);
  MemoryLanes lanes(spec.size, {});
  std::vector<ScanBuffers> buffers = runScan(scanCase, algorithm, 2, outputs, nodes, lanes);
  const std::vector<ReferenceRank> expected = referenceScan(scanCase);
  CHECK(std::isfinite(expected[spec.rankAt(6)].total.value[0]));
  checkOutputs(buffers, expected);
}

TEST_CASE("factors whose product underflows propagate NaN, except where factors are multiplied first") {
  ScanSpec spec;
  spec.size = 5;
  spec.op = GENERATE(seqparScanScalar, seqparScanDiag, seqparScanMatrix);
  spec.heads = 1;
  spec.dk = 2;
  spec.dv = 16;
  spec.initial = true;
  ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 7);
  for (auto& rank : scanCase.ranks) std::fill(rank.transition.begin(), rank.transition.end(), 1e-25F);
  std::fill(scanCase.initial.begin(), scanCase.initial.end(), std::numeric_limits<float>::quiet_NaN());
  const std::vector<Outputs> outputs(static_cast<size_t>(spec.size), Outputs::Both);
  const std::vector<int> nodes = {0, 0, 1, 1, 2};
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  const bool bounded = GENERATE(false, true);
  CAPTURE(spec, algorithm, bounded);
  MemoryLanes lanes(spec.size, {});
  const bool multipliesFirst = algorithm == seqparScanDoubling || (algorithm == seqparScanHier && bounded);
  std::vector<ScanBuffers> buffers = runScan(scanCase, algorithm, 1, outputs, nodes, lanes, bounded);
  for (const float number : buffers[4].totalValues()) CHECK(std::isnan(number) != multipliesFirst);
}
