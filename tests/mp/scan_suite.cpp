#include "scan_suite.h"

#include <cmath>
#include <random>
#include <vector>

#include "common/backend.h"
#include "reference_scan.h"
#include "scan_case.h"

namespace seqpar::test {
namespace {

/// One call of the suite.
struct Call {
  ScanSpec spec;
  Numbers numbers = Numbers::Exact;
  int algorithm = seqparScanAuto;
  int blocks = 0;
  bool onStream = false;
};

template <typename Value, typename Random>
Value pick(Random& random, std::initializer_list<Value> values) {
  return values.begin()[std::uniform_int_distribution<size_t>(0, values.size() - 1)(random)];
}

template <typename Random>
Call drawCall(Random& random, int ranks, int index) {
  Call call;
  auto& spec = call.spec;
  spec.size = ranks;
  spec.op = pick(random, {seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix});
  spec.direction = pick(random, {seqparForward, seqparReverse});
  spec.heads = pick<size_t>(random, {1, 2, 3, 6, 32});
  spec.dk = pick<size_t>(random, {1, 3, 16, 33, 64, size_t{spec.heads > 6 ? 64U : 128U}});
  spec.dv = pick<size_t>(random, {1, 5, 16, 48, 128});
  // A state that two ranks of a host read in place.
  if (ranks == 2 && index % 16 == seqparScanChain) {
    spec.heads = 35;
    spec.dk = 123;
    spec.dv = 128;
  }
  spec.sequences = pick<size_t>(random, {1, spec.heads});
  spec.stateType = pick(random, {seqparFloat32, seqparFloat16, seqparBfloat16});
  spec.wireType = pick(random, {seqparFloat32, seqparFloat32, seqparFloat16, seqparBfloat16});
  const bool decays = spec.op == seqparScanScalar || spec.op == seqparScanDiag;
  spec.decayForm = decays ? pick(random, {seqparDecayLinear, seqparDecayLog, seqparDecayLog2}) : seqparDecayLinear;
  spec.flags = pick(random, {false, false, true});
  spec.initial = pick(random, {false, true});
  call.numbers = pick(random, {Numbers::Exact, Numbers::Random});
  // exp of a natural logarithm is not exact, so powers of two are passed directly or as logarithms to base 2.
  if (call.numbers == Numbers::Exact && spec.decayForm == seqparDecayLog) spec.decayForm = seqparDecayLog2;
  call.algorithm = index % (SEQPAR_SCAN_ALGORITHMS + 1);
  call.blocks = pick(random, {0, 0, 1, 3, 7, 64});
  call.onStream = pick(random, {false, true});
  return call;
}

seqparAllScanParams_t makeParams(const Call& call, const ScanCase& scanCase, int rank) {
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  const auto& spec = call.spec;
  params.op = spec.op;
  params.direction = spec.direction;
  params.heads = static_cast<int64_t>(spec.heads);
  params.dk = static_cast<int64_t>(spec.dk);
  params.dv = static_cast<int64_t>(spec.dv);
  params.stateType = spec.stateType;
  params.wireType = spec.wireType;
  params.decayForm = spec.decayForm;
  params.sequences = static_cast<int64_t>(spec.sequences);
  params.flags = spec.flags ? scanCase.ranks[static_cast<size_t>(rank)].flags.data() : nullptr;
  params.algorithm = call.algorithm;
  params.blocks = call.blocks;
  return params;
}

void compare(const char* what, const std::vector<float>& got, const ReferenceState& expected, const Call& call) {
  const bool exact = call.numbers == Numbers::Exact;
  const double relative = exact ? 0 : relativeBound(call.spec);
  const double absolute = exact ? 0 : absoluteBound(call.spec);
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected.value[i]);
    expect(error <= relative * expected.size[i] + absolute, what, "[", i, "] is ", got[i], ", expected ",
           expected.value[i], exact ? " exactly" : " within the bound");
  }
}

void runCall(seqparComm_t comm, int rank, const Call& call, Outputs outputs, std::uint64_t seed, const Stream& stream) {
  const auto scanCase = makeScanCase(call.spec, call.numbers, seed);
  ScanBuffers buffers(scanCase, rank, outputs);
  const auto params = makeParams(call, scanCase, rank);
  auto* const where = call.onStream ? stream.get() : backend()->noStream();
  const auto result = seqparAllScan(buffers.state(), buffers.transition(), buffers.initial(), buffers.prefix(),
                                    buffers.total(), &params, comm, where);
  // Not every algorithm can do every shape on every communicator; the plan knows.
  seqparScanEstimate_t plan[SEQPAR_SCAN_ALGORITHMS + 1];
  expectSuccess(seqparAllScanPlan(&params, comm, plan), "seqparAllScanPlan", comm);
  if (std::isinf(plan[0].modelUs)) {
    const bool refusable = call.algorithm != seqparScanAuto && call.algorithm != seqparScanChain;
    return expect(refusable && result == seqparInvalidUsage, "the plan has no time for it");
  }
  expectSuccess(result, "seqparAllScan", comm);
  backend()->synchronize(where);
  const auto reference = referenceScan(scanCase)[static_cast<size_t>(rank)];
  if (buffers.wantsPrefix()) compare("prefix", buffers.prefixValues(), reference.prefix, call);
  if (buffers.wantsTotal()) compare("total", buffers.totalValues(), reference.total, call);
  expect(buffers.inputsIntact(), "an input was changed");
}

}  // namespace

void runScanSuite(seqparComm_t comm, std::uint64_t seed, int cases) {
  int ranks = 0, rank = 0;
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank");
  const Stream stream;
  std::mt19937_64 shared(seed);
  std::mt19937_64 own(seed + 1 + static_cast<std::uint64_t>(rank));
  for (int index = 0; index < cases; ++index) {
    const auto call = drawCall(shared, ranks, index);
    const auto outputs = pick(
        own, {Outputs::Both, Outputs::PrefixOnly, Outputs::TotalOnly, Outputs::PrefixInPlace, Outputs::TotalInPlace});
    try {
      runCall(comm, rank, call, outputs, seed * 1000 + static_cast<std::uint64_t>(index), stream);
    } catch (const std::exception& error) {
      expect(false, "seed ", seed, ", case ", index, " (", call.spec, ", ", seqparScanAlgorithmName(call.algorithm),
             ", blocks ", call.blocks, ", outputs ", static_cast<int>(outputs), "): ", error.what());
    }
  }
}

}  // namespace seqpar::test
