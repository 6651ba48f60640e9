// Division of the state to the limits of the mailbox, and the errors if it cannot be divided that finely.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "algorithm_runs.h"
#include "base/error.h"
#include "scan/cut.h"
#include "scan/message.h"

namespace {

using namespace seqpar;
using namespace seqpar::test;

ScanSpec matrixSpec(int size, size_t dk) {
  ScanSpec spec;
  spec.size = size;
  spec.op = seqparScanMatrix;
  spec.heads = 2;
  spec.dk = dk;
  spec.dv = 32;
  return spec;
}

MemoryMailboxOptions limits(size_t maxMessage) {
  MemoryMailboxOptions options;
  options.maxMessage = maxMessage;
  options.window = 4 * maxMessage;
  return options;
}

ScanProblem shapeOf(const ScanSpec& spec) {
  ScanProblem problem;
  problem.op = spec.op;
  problem.heads = spec.heads;
  problem.dk = spec.dk;
  problem.dv = spec.dv;
  return problem;
}

}  // namespace

TEST_CASE("the number of blocks is the caller's where messages fit, and more where they do not") {
  ScanSpec spec;
  spec.size = 2;
  spec.heads = 4;
  spec.dk = 16;
  spec.dv = 64;
  const ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 1);
  ScanBuffers buffers(scanCase, 0, Outputs::Both);
  const ScanProblem problem = buffers.problem();
  const auto affine = makeAffine(problem);
  const std::vector<int> ranks = {0, 1};
  const ScanOrder order{ranks, 0, ranks};
  const auto blocksFor = [&](size_t maxMessage, size_t asked) {
    MemoryLanes lanes(2, limits(maxMessage));
    size_t count = 0;
    lanes.run([&](Mailbox& mail) {
      const std::vector<Block> blocks = cutScan(seqparScanChain, *affine, problem, order, mail, asked);
      if (mail.rank() != 0) return;
      count = blocks.size();
      for (const Block block : blocks) CHECK(stateBytes(*affine, problem, block) <= maxMessage);
    });
    return count;
  };
  // 4096 elements of 4 bytes.
  CHECK(blocksFor(1 << 20, 1) == 1);
  CHECK(blocksFor(1 << 20, 7) == 7);
  CHECK(blocksFor(1 << 20, 0) == 1);
  CHECK(blocksFor(1 << 20, 1000000) == 256);
  CHECK(blocksFor(4096, 1) == 4);
  CHECK(blocksFor(4096, 5) == 5);
  CHECK(blocksFor(64, 1) == 256);
}

TEST_CASE("an algorithm that cannot split finely enough is refused on every rank before it sends") {
  const seqparScanAlgorithm_t algorithm =
      GENERATE(seqparScanOneshot, seqparScanTransposed, seqparScanDoubling, seqparScanHier, seqparScanLasp2);
  // The coefficients of one head alone are 64 x 64 x 4 bytes.
  const ScanSpec spec = matrixSpec(3, 64);
  CHECK_FALSE(scanFits(scanAlgorithm(algorithm).traffic, shapeOf(spec), spec.size, 8192, 4 * 8192));
  const ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 1);
  const std::vector<Outputs> outputs(3, Outputs::Both);
  const std::vector<int> nodes = {0, 0, 0};
  MemoryLanes lanes(3, limits(8192));
  try {
    runScan(scanCase, algorithm, 1, outputs, nodes, lanes);
    FAIL("it ran");
  } catch (const Error& error) {
    CHECK(error.result() == seqparInvalidUsage);
    CHECK_THAT(error.what(), Catch::Contains("dk = 64") && Catch::Contains("8192"));
  }
  for (int rank = 0; rank < 3; ++rank) CHECK(lanes.messagesFrom(rank) == 0);
}

TEST_CASE("CHAIN and LASP1 send states only, so a large dk fits") {
  const seqparScanAlgorithm_t algorithm = GENERATE(seqparScanChain, seqparScanLasp1);
  CHECK(scanFits(scanAlgorithm(algorithm).traffic, shapeOf(matrixSpec(3, 64)), 3, 8192, 4 * 8192));
}

TEST_CASE("TRANSPOSED and HIER count every message of an owner") {
  const seqparScanAlgorithm_t algorithm = GENERATE(seqparScanTransposed, seqparScanHier);
  // A finest message is 65 x 64 floats of coefficients and, at 16 columns, 64 x 16 floats of state: 20736 bytes with
  // its padding. An owner publishes it and up to one state of 4096 bytes a position.
  const ScanProblem problem = shapeOf(matrixSpec(2, 64));
  CHECK(scanFits(scanAlgorithm(algorithm).traffic, problem, 4, 32768, 4 * 32768));
  CHECK_FALSE(scanFits(scanAlgorithm(algorithm).traffic, problem, 64, 32768, 4 * 32768));
}

TEST_CASE("scanFits needs no buffers, for any operator") {
  const seqparScanOp_t op = GENERATE(seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix);
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  ScanSpec spec = matrixSpec(8, 16);
  spec.op = op;
  CHECK(scanFits(scanAlgorithm(algorithm).traffic, shapeOf(spec), 8, 1 << 20, 4 << 20));
}

TEST_CASE("scanFits answers for states that no memory holds") {
  const seqparScanOp_t op = GENERATE(seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix);
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  ScanSpec spec = matrixSpec(8, 16);
  spec.op = op;
  spec.heads = size_t{1} << 37;
  CHECK(scanFits(scanAlgorithm(algorithm).traffic, shapeOf(spec), 8, 1 << 20, 4 << 20));
}

TEST_CASE("the finest block is the largest of those that cannot be cut") {
  const unsigned seed = GENERATE(take(200, random(0U, ~0U)));
  std::mt19937 random(seed);
  ScanProblem problem;
  problem.op = static_cast<seqparScanOp_t>(random() % 4);
  problem.heads = 1 + random() % 5;
  problem.dk = 1 + random() % 40;
  problem.dv = 1 + random() % 70;
  problem.headFlags.assign(problem.heads, 0);
  const std::vector<float> factors(problem.heads * problem.dk * problem.dk);
  problem.transition = factors.data();
  const auto affine = makeAffine(problem);
  BlockSize largest;
  for (const Block block : affine->split(problem.elements())) {
    largest.state = std::max(largest.state, affine->stateElements(block));
    largest.coefficients = std::max(largest.coefficients, affine->coefficientElements(block));
  }
  CAPTURE(problem.op, problem.heads, problem.dk, problem.dv);
  CHECK(finestBlock(problem).state == largest.state);
  CHECK(finestBlock(problem).coefficients == largest.coefficients);
}

TEST_CASE("an empty scan sends nothing") {
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  ScanSpec spec = matrixSpec(3, 4);
  spec.heads = GENERATE(0, 2);
  if (spec.heads != 0) spec.dv = 0;
  const ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 1);
  const std::vector<Outputs> outputs(3, Outputs::Both);
  const std::vector<int> nodes = {0, 0, 0};
  MemoryLanes lanes(3, {});
  runScan(scanCase, algorithm, 2, outputs, nodes, lanes);
  for (int rank = 0; rank < 3; ++rank) CHECK(lanes.messagesFrom(rank) == 0);
}
