// seqparAllScan and its plan: checks and the way down.
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

/// States, which are fp32 while they are combined, and transitions.
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

/// Those of each head. Not of what is only planned: that may be larger than any memory.
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

/// The shape of a problem; buffers are not looked at, and flags only checked.
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

/// `initial` as the caller gave it: alike on all positions, though only one reads it.
void checkBuffers(const char* call, const ScanProblem& problem, const void* givenInitial, const Communicator& comm) {
  const size_t each = sizeOf(problem.stateType);
  const size_t bytes = problem.elements() * each;
  const Buffer state{"state", problem.state, bytes, each};
  const Buffer transition{"transition", problem.transition, transitionElements(problem) * sizeof(float), sizeof(float)};
  const Buffer initial{"initial", givenInitial, bytes, each};
  const Buffer prefix{"prefix", problem.prefix, bytes, each};
  const Buffer total{"total", problem.total, bytes, each};
  requirePointer(call, state.name, state.data);
  if (problem.op == seqparScanSum && transition.data != nullptr) {
    fail(seqparInvalidArgument, call, ": transition is ", transition.data, ", expected NULL for SUM");
  }
  if (problem.op != seqparScanSum) requirePointer(call, transition.name, transition.data);
  if (prefix.data == nullptr && total.data == nullptr) {
    fail(seqparInvalidArgument, call, ": prefix and total are both NULL, expected at least one output");
  }
  for (const auto& buffer : {state, transition, initial, prefix, total}) requireMemory(call, buffer, comm);
  requireApart(call, prefix, total, false);
  for (const auto& output : {prefix, total}) {
    requireApart(call, state, output, true);
    requireApart(call, transition, output, false);
    requireApart(call, initial, output, false);
  }
}

/// A value that means nothing is an error in any case.
int algorithmOfEnvironment() {
  return envChoice("SEQPAR_ALGO", scanAlgorithmChoices()).value_or(seqparScanAuto);
}

/// The same on all ranks: the call, the shape, the types, the algorithm; flags and pointers are each rank's own.
void compareRanks(const char* call, const seqparAllScanParams_t& params, int fromEnvironment, Communicator& comm) {
  const std::array<NamedValue, 12> values{{{"op", params.op},
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
                                           {"SEQPAR_ALGO", fromEnvironment}}};
  comm.compareNext(call, values);
}

/// What the parameters name, or else the environment, or else Auto.
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

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparAllScan(const void* state, const void* transition, const void* initial, void* prefix,
                                        void* total, const seqparAllScanParams_t* params, seqparComm_t handle,
                                        void* stream) {
  const char* call = "seqparAllScan";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    const auto given = readVersioned(call, "params", params, seqparAllScanParams_t SEQPAR_ALL_SCAN_PARAMS_INITIALIZER);
    auto problem = std::make_shared<ScanProblem>(checkParams(call, given));
    problem->first = scanPosition(comm.rank(), comm.size(), problem->direction) == 0;
    problem->state = state;
    problem->transition = static_cast<const float*>(transition);
    problem->initial = problem->first ? initial : nullptr;
    problem->prefix = prefix;
    problem->total = total;
    const bool empty = problem->elements() == 0;
    if (!empty) checkBuffers(call, *problem, initial, comm);
    problem->headFlags = flagsOfHeads(given);
    const auto where = callerStream(call, stream, comm);
    const int fromEnvironment = algorithmOfEnvironment();
    compareRanks(call, given, fromEnvironment, comm);
    if (empty) return;  // before the choice: an algorithm that cannot do this shape has nothing to do either
    const auto choice = choose(call, *problem, entry, given, fromEnvironment);
    const ScanAlgorithm& algorithm = scanAlgorithm(choice.algorithm);
    CallScope::setAlgorithm(algorithm.name);
    entry.scans.backend().run(std::move(problem), algorithm, choice.blocks, where);
  });
}

SEQPAR_API seqparResult_t seqparAllScanPlan(const seqparAllScanParams_t* params, seqparComm_t handle,
                                            seqparScanEstimate_t* estimates) {
  const char* call = "seqparAllScanPlan";
  return onEntry(call, handle, [&](CommEntry& entry) {
    const auto given = readVersioned(call, "params", params, seqparAllScanParams_t SEQPAR_ALL_SCAN_PARAMS_INITIALIZER);
    requirePointer(call, "estimates", estimates);
    const auto all = entry.scans.estimates(checkParams(call, given), given.blocks);
    estimates[0] = chooseScan(all, namedAlgorithm(given, algorithmOfEnvironment()));
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
