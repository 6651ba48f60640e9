// seqparAllScan and its plan: argument checks, then src/scan.
#include <array>
#include <cstring>
#include <limits>

#include "api/boundary.h"
#include "api/buffers.h"
#include "base/checked.h"
#include "base/convert.h"
#include "base/env.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "comm/agreement.h"
#include "scan/cost.h"

using namespace seqpar;

namespace {

constexpr unsigned kKnownFlags = SEQPAR_SCAN_RESET_IN | SEQPAR_SCAN_CUT;
constexpr int kMostBlocks = 1 << 20;

void requireRange(const char* call, const char* field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    fail(seqparInvalidArgument, call, ": params->", field, " is ", value, ", expected ", least, " to ", most);
  }
}

/// Rejects sizes that overflow: states (fp32 while they are combined) and transitions.
void requireCountable(const char* call, const seqparAllScanParams_t& params) {
  const Extent heads{"heads", params.heads}, rows{"dk", params.dk}, bytes{"bytes", sizeof(float)};
  countBytes(call, "state", {heads, rows, {"dv", params.dv}, bytes});
  if (params.op == seqparScanMatrix) countBytes(call, "transition", {heads, rows, rows, bytes});
}

void checkFlags(const char* call, const seqparAllScanParams_t& params) {
  if (params.flags == nullptr) return;
  requireArray(call, "params->flags", params.flags, static_cast<size_t>(params.sequences), 1);
  for (int64_t sequence = 0; sequence < params.sequences && params.heads > 0; ++sequence) {
    const unsigned flags = params.flags[sequence];
    if ((flags & ~kKnownFlags) != 0) {
      fail(seqparInvalidArgument, call, ": params->flags[", sequence, "] is ", flags, ", expected bits of ",
           kKnownFlags);
    }
  }
}

/// The flags of each head. Not for plans without a call: their shapes may exceed memory.
std::vector<unsigned char> flagsOfHeads(const seqparAllScanParams_t& params) {
  const auto count = static_cast<size_t>(params.heads);
  auto all = allocateFor("the flags of heads", count, [&] { return std::vector<unsigned char>(count, 0); });
  if (params.flags == nullptr || all.empty()) return all;
  const int64_t heads = params.heads / params.sequences;
  for (int64_t sequence = 0; sequence < params.sequences; ++sequence) {
    std::memset(all.data() + sequence * heads, params.flags[sequence], static_cast<size_t>(heads));
  }
  return all;
}

/// The shape of a problem; does not check buffers, and only validates flags.
ScanProblem checkParams(const char* call, const seqparAllScanParams_t& params) {
  const int64_t mostExtent = std::numeric_limits<int64_t>::max();
  requireRange(call, "op", params.op, seqparScanSum, seqparScanMatrix);
  requireRange(call, "direction", params.direction, seqparForward, seqparReverse);
  requireRange(call, "heads", params.heads, 0, mostExtent);
  requireRange(call, "dk", params.dk, params.heads > 0 ? 1 : 0, mostExtent);
  requireRange(call, "dv", params.dv, params.heads > 0 ? 1 : 0, mostExtent);
  requireRange(call, "stateType", params.stateType, seqparFloat32, seqparBfloat16);
  requireRange(call, "wireType", params.wireType, seqparFloat32, seqparBfloat16);
  requireRange(call, "decayForm", params.decayForm, seqparDecayLinear, seqparDecayLog2);
  if (params.algorithm != seqparScanAuto) scanAlgorithm(params.algorithm, "params->algorithm");
  requireRange(call, "blocks", params.blocks, 0, kMostBlocks);
  requireRange(call, "sequences", params.sequences, 1, mostExtent);
  requireRange(call, "bounded", params.bounded, 0, 1);
  requireCountable(call, params);
  const bool hasDecay = params.op == seqparScanScalar || params.op == seqparScanDiag;
  if (!hasDecay && params.decayForm != seqparDecayLinear) {
    fail(seqparInvalidArgument, call, ": params->decayForm is ", params.decayForm,
         ", expected seqparDecayLinear, since SUM and MATRIX have no decay that could be a logarithm");
  }
  if (params.heads % params.sequences != 0) {
    fail(seqparInvalidArgument, call, ": params->sequences is ", params.sequences,
         ", expected a divisor of heads = ", params.heads);
  }

  ScanProblem problem;
  problem.op = static_cast<seqparScanOp_t>(params.op);
  problem.direction = static_cast<seqparDirection_t>(params.direction);
  problem.heads = static_cast<size_t>(params.heads);
  problem.dk = static_cast<size_t>(params.dk);
  problem.dv = static_cast<size_t>(params.dv);
  problem.stateType = static_cast<seqparDataType_t>(params.stateType);
  problem.wireType = static_cast<seqparDataType_t>(params.wireType);
  problem.decayForm = static_cast<seqparDecayForm_t>(params.decayForm);
  problem.bounded = params.bounded == 1;
  checkFlags(call, params);
  return problem;
}

size_t transitionElements(const ScanProblem& problem) {
  switch (problem.op) {
    case seqparScanSum:
      return 0;
    case seqparScanScalar:
      return problem.heads;
    case seqparScanDiag:
      return problem.heads * problem.dk;
    default:
      return problem.heads * problem.dk * problem.dk;
  }
}

/// `arrays` from the caller: all positions check `initial`, only position 0 reads it.
void checkBuffers(const char* call, const ScanProblem& problem, const ScanArrays<void>& arrays,
                  const Communicator& comm) {
  const size_t each = sizeOf(problem.stateType);
  const size_t bytes = problem.elements() * each;
  const Buffer state{"state", arrays.state, bytes, each};
  const Buffer transition{"transition", arrays.transition, transitionElements(problem) * sizeof(float), sizeof(float)};
  const Buffer initial{"initial", arrays.initial, bytes, each};
  const Buffer prefix{"prefix", arrays.prefix, bytes, each};
  const Buffer total{"total", arrays.total, bytes, each};
  requirePointer(call, state.name, state.data);
  if (problem.op == seqparScanSum && transition.data != nullptr) {
    fail(seqparInvalidArgument, call, ": transition is ", transition.data, ", expected NULL for SUM");
  }
  if (problem.op != seqparScanSum && transition.data == nullptr) {
    fail(seqparInvalidArgument, call, ": transition is NULL, expected an array for params->op ", problem.op,
         " (seqparScanSum takes none)");
  }
  if (prefix.data == nullptr && total.data == nullptr) {
    fail(seqparInvalidArgument, call, ": prefix and total are both NULL, expected at least one output");
  }
  for (const Buffer* buffer : {&state, &transition, &initial, &prefix, &total}) requireMemory(call, *buffer, comm);
  requireDisjoint(call, prefix, total, false);
  for (const Buffer* output : {&prefix, &total}) {
    requireDisjoint(call, state, *output, true);
    requireDisjoint(call, transition, *output, false);
    requireDisjoint(call, initial, *output, false);
  }
}

/// An invalid value is an error even if it is not needed.
int algorithmOfEnvironment() {
  return envChoice("SEQPAR_ALGO", scanAlgorithmChoices()).value_or(seqparScanAuto);
}

/// Values that must be equal on all ranks: shape, types and algorithm; not flags and pointers.
std::array<NamedValue, 13> sharedValues(const seqparAllScanParams_t& params, int fromEnvironment) {
  return {{{"op", params.op},
           {"direction", params.direction},
           {"heads", params.heads},
           {"dk", params.dk},
           {"dv", params.dv},
           {"stateType", params.stateType},
           {"wireType", params.wireType},
           {"decayForm", params.decayForm},
           {"sequences", params.sequences},
           {"algorithm", params.algorithm},
           {"blocks", params.blocks},
           {"bounded", params.bounded},
           {"SEQPAR_ALGO", fromEnvironment}}};
}

/// The algorithm of the parameters, else of the environment, else Auto.
int namedAlgorithm(const seqparAllScanParams_t& params, int fromEnvironment) {
  return params.algorithm != seqparScanAuto ? params.algorithm : fromEnvironment;
}

seqparScanEstimate_t choose(const char* call, const ScanProblem& problem, CommEntry& entry,
                            const seqparAllScanParams_t& params, int fromEnvironment) {
  const auto choice = entry.scans.choose(problem, namedAlgorithm(params, fromEnvironment), params.blocks);
  if (choice.modelUs == kNever) {
    const auto all = entry.scans.estimates(problem, params.blocks);
    fail(seqparInvalidUsage, call, ": the algorithm ", scanAlgorithm(choice.algorithm).name, " cannot do heads ",
         problem.heads, " x dk ", problem.dk, " x dv ", problem.dv, " on this communicator (",
         scanAlgorithm(choice.algorithm).traffic == ScanTraffic::NodeShards
             ? "the ranks of a node must be neighbors, and "
             : "",
         entry.scans.backend().limits(), "); expected ",
         scanAlgorithmsThat([&](const ScanAlgorithm& row) { return chooseScan(all, row.id).modelUs != kNever; }));
  }
  return choice;
}

/// Adds a checked call to the cache.
void remember(const char* call, const seqparAllScanParams_t& params, const ScanProblem& problem,
              std::span<const NamedValue> values, const ScanAlgorithm& algorithm, int blocks, CommEntry& entry) {
  if (params.flags != nullptr || entry.comm->device() != nullptr || !entry.scanCalls.lacks(params)) return;
  const CallValues* const kept = entry.comm->calls().keep(call, values);
  if (kept == nullptr) return;
  ScanCall known{params, problem, kept, &algorithm, nullptr};
  static_cast<ScanArrays<void>&>(known.problem) = {};
  known.prepared = entry.scans.backend().prepare(known.problem, algorithm, blocks);
  entry.scanCalls.add(std::move(known));
}

/// Runs a call with parameters in the cache; false if they are not in it.
bool runKnown(const char* call, const ScanArrays<void>& arrays, const seqparAllScanParams_t* params, CommEntry& entry,
              void* stream) {
  // A different size belongs to a different version of the structure.
  if (checkVersioned(call, "params", params).size != sizeof(*params)) return false;
  const ScanCall* const known = entry.scanCalls.find(*params);
  if (known == nullptr) return false;
  RecentBuffers::check(known->id, {arrays.state, arrays.transition, arrays.initial, arrays.prefix, arrays.total},
                       [&] { checkBuffers(call, known->problem, arrays, *entry.comm); });
  const auto where = callerStream(call, stream, *entry.comm);
  entry.comm->compareNext(call, *known->values);
  CallScope::setAlgorithm(known->algorithm->name);
  known->prepared->run(arrays, where);
  return true;
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparAllScan(const void* state, const void* transition, const void* initial, void* prefix,
                                        void* total, const seqparAllScanParams_t* params, seqparComm_t handle,
                                        void* stream) {
  const char* call = "seqparAllScan";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    const ScanArrays<void> arrays{state, static_cast<const float*>(transition), initial, prefix, total};
    if (runKnown(call, arrays, params, entry, stream)) return;
    const auto given = readVersioned(call, "params", params, seqparAllScanParams_t SEQPAR_ALL_SCAN_PARAMS_INITIALIZER);
    auto problem = std::make_shared<ScanProblem>(checkParams(call, given));
    problem->first = scanPosition(comm.rank(), comm.size(), problem->direction) == 0;
    static_cast<ScanArrays<void>&>(*problem) = arrays;
    const bool empty = problem->elements() == 0;
    if (!empty) checkBuffers(call, *problem, arrays, comm);
    if (!problem->first) problem->initial = nullptr;
    problem->headFlags = flagsOfHeads(given);
    const auto where = callerStream(call, stream, comm);
    const int fromEnvironment = algorithmOfEnvironment();
    const auto values = sharedValues(given, fromEnvironment);
    comm.compareNext(call, values);
    if (empty) return;  // before the choice: the algorithm may not support the empty shape
    const auto choice = choose(call, *problem, entry, given, fromEnvironment);
    const ScanAlgorithm& algorithm = scanAlgorithm(choice.algorithm);
    CallScope::setAlgorithm(algorithm.name);
    remember(call, given, *problem, values, algorithm, choice.blocks, entry);
    entry.scans.backend().run(std::move(problem), algorithm, choice.blocks, where);
  });
}

SEQPAR_API seqparResult_t seqparAllScanPlan(const seqparAllScanParams_t* params, seqparComm_t handle,
                                            seqparScanEstimate_t* estimates) {
  const char* call = "seqparAllScanPlan";
  return onEntry(call, handle, [&](CommEntry& entry) {
    const auto given = readVersioned(call, "params", params, seqparAllScanParams_t SEQPAR_ALL_SCAN_PARAMS_INITIALIZER);
    requirePointer(call, "estimates", estimates);
    const auto problem = checkParams(call, given);
    const auto all = entry.scans.estimates(problem, given.blocks);
    estimates[0] = entry.scans.choice(all, problem, namedAlgorithm(given, algorithmOfEnvironment()));
    std::copy(all.begin(), all.end(), estimates + 1);
  });
}

SEQPAR_API const char* seqparScanAlgorithmName(int algorithm) {
  for (const auto& [name, id] : scanAlgorithmChoices()) {
    if (id == algorithm) return name;
  }
  return nullptr;
}

}  // extern "C"
