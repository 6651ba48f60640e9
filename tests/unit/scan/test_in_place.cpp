// CHAIN between two ranks with states large enough to be read in place or mapped.
#include <array>
#include <catch2/catch.hpp>
#include <random>

#include "algorithm_runs.h"
#include "reference_scan.h"
#include "scan/in_place.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// 2 MiB on the wire and some elements more, of heads that blocks do not end with.
ScanSpec largePair(seqparDataType_t stateType, seqparDataType_t wireType) {
  ScanSpec spec;
  spec.size = 2;
  spec.stateType = stateType;
  spec.wireType = wireType;
  spec.heads = wireType == seqparFloat32 ? 34 : 68;
  spec.sequences = spec.heads;
  spec.dk = 125;
  spec.dv = 127;
  return spec;
}

void check(const ScanSpec& spec, std::array<Outputs, 2> outputs, std::uint64_t seed) {
  const ScanCase scanCase = makeScanCase(spec, Numbers::Exact, seed);
  const auto expected = referenceScan(scanCase);
  const std::vector<int> nodes(2, 0);
  MemoryMailboxOptions options;
  options.mapped = seed % 2 == 0;
  MemoryLanes lanes(2, options);
  CAPTURE(spec, seed, outputs[0], outputs[1]);
  auto buffers = runScan(scanCase, seqparScanChain, 16, outputs, nodes, lanes);
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(rank);
    auto& each = buffers[rank];
    if (each.wantsPrefix()) CHECK(differenceFrom(expected[rank].prefix.value, each.prefixValues()) == "");
    if (each.wantsTotal()) CHECK(differenceFrom(expected[rank].total.value, each.totalValues()) == "");
    CHECK(each.inputsIntact());
  }
}

}  // namespace

TEST_CASE("large states of two ranks are correct, read in place or sent, for all outputs") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  constexpr Outputs kAll[] = {Outputs::Both, Outputs::PrefixOnly, Outputs::TotalOnly, Outputs::PrefixInPlace,
                              Outputs::TotalInPlace};
  auto spec = largePair(seqparFloat32, seqparFloat32);
  for (const auto mine : kAll) {
    for (const auto others : kAll) {
      spec.op = random() % 2 == 0 ? seqparScanDiag : seqparScanSum;
      spec.direction = random() % 2 == 0 ? seqparForward : seqparReverse;
      spec.flags = random() % 2 == 0;
      spec.initial = random() % 4 == 0;
      check(spec, {mine, others}, random());
    }
  }
}

TEST_CASE("medium states of two ranks are correct, mapped or sent") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  auto spec = largePair(seqparFloat32, seqparFloat32);
  spec.heads = spec.sequences = 3;
  for (int i = 0; i < 60; ++i) {
    spec.op = random() % 2 == 0 ? seqparScanDiag : seqparScanSum;
    spec.flags = random() % 2 == 0;
    spec.initial = random() % 4 == 0;
    const auto outputs = [&] { return random() % 2 == 0 ? Outputs::Both : Outputs::PrefixOnly; };
    check(spec, {outputs(), outputs()}, random());
  }
}

TEST_CASE("large states of two ranks may be sent in another type") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const auto stateType : {seqparFloat32, seqparBfloat16}) {
    for (const auto wireType : {seqparFloat32, seqparBfloat16}) {
      auto spec = largePair(stateType, wireType);
      spec.flags = random() % 2 == 0;
      check(spec, {Outputs::PrefixOnly, Outputs::PrefixOnly}, random());
      check(spec, {Outputs::Both, Outputs::Both}, random());
    }
  }
}

TEST_CASE("only large states of elementwise operators between two ranks are read in place") {
  ScanProblem problem;
  problem.heads = 32;
  problem.dk = problem.dv = 128;
  PairAccess none, reads, maps;
  reads.readable = true;
  maps.mapped = true;
  CHECK(offersInPlace(problem, 2, reads));
  CHECK(offersInPlace(problem, 2, maps));
  CHECK_FALSE(offersInPlace(problem, 2, none));
  CHECK_FALSE(offersInPlace(problem, 3, reads));
  CHECK_FALSE(offersInPlace(problem, 3, maps));
  problem.wireType = seqparBfloat16;
  CHECK_FALSE(offersInPlace(problem, 2, reads));
  CHECK(offersInPlace(problem, 2, maps));
  problem.heads = 3;
  CHECK_FALSE(offersInPlace(problem, 2, maps));
  problem.heads = 0;
  CHECK_FALSE(offersInPlace(problem, 2, maps));
  problem.heads = 32;
  problem.wireType = seqparFloat32;
  problem.op = seqparScanMatrix;
  CHECK_FALSE(offersInPlace(problem, 2, reads));
  CHECK_FALSE(offersInPlace(problem, 2, maps));
}
