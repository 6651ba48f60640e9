#include "linear_call.h"

#include <numeric>

namespace seqpar::attn::test {
namespace {

/// The text of a failed call, or "".
std::string said(seqparResult_t result) {
  return result == seqparSuccess ? "" : std::string(seqparAttnGetLastError()) + ".";
}

class Plan {
 public:
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() { seqparAttnPlanDestroy(plan); }
  seqparAttnPlan_t plan = nullptr;
};

}  // namespace

std::string runLinear(const LinearCase& c, const std::vector<int64_t>& lengths, int rank, seqparComm_t comm,
                      const LinearOptions& options, LinearResult& result) {
  const auto begin = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.begin() + rank, int64_t{0}));
  const size_t end = begin + static_cast<size_t>(lengths[static_cast<size_t>(rank)]), count = end - begin;
  const auto as = [](size_t x) { return static_cast<int64_t>(x); };
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = c.family;
  desc.algorithm = options.algorithm;
  desc.batch = as(c.batch);
  desc.tokensOfRanks = lengths.data();
  desc.sequences = c.cuSeqlens.empty() ? 0 : as(c.cuSeqlens.size() - 1);
  desc.cuSeqlens = c.cuSeqlens.empty() ? nullptr : c.cuSeqlens.data();
  desc.heads = as(c.heads);
  desc.kvHeads = as(c.keyHeads);
  desc.headDim = as(c.dk);
  desc.valueDim = as(c.dv);
  desc.dataType = c.dataType;
  const size_t betaAt = c.hasGate() ? 1 : 0;  // the gate's index
  if (c.hasGate()) desc.gateTypes[0] = c.gateType;
  if (c.hasBeta()) desc.gateTypes[betaAt] = c.betaType;
  const bool hasInput = options.inputGate != nullptr;
  desc.inputGate = hasInput ? 1 : 0;
  if (hasInput) desc.gateTypes[betaAt] = options.inputGateType;
  desc.normalize = c.normalize ? 1 : 0;
  desc.scale = c.scale;
  desc.wireType = options.wireType;
  desc.training = options.training ? 1 : 0;
  desc.reserve = options.reserve ? 2 : 0;
  Plan owner;
  auto text = said(seqparAttnPlanCreate(&owner.plan, &desc, comm));
  if (text.empty()) text = said(seqparAttnPlanPrepare(owner.plan, nullptr, 0));
  if (!text.empty()) return text;

  const bool first = options.headsFirst;
  const size_t gap = options.padding, width = c.gateWidth(), states = c.states();
  const auto gapOf = [&](const char* name) { return gap + (name == options.odd ? 1 : 0); };
  const auto keys = [&](const char* name) {
    return CallerTensor(c.dataType, c.batch, count, c.keyHeads, c.dk, gapOf(name), first);
  };
  const auto values = [&](const char* name) {
    return CallerTensor(c.dataType, c.batch, count, c.heads, c.dv, gapOf(name), first);
  };
  auto q = keys("q"), k = keys("k"), dq = keys("dq"), dk = keys("dk");
  auto v = values("v"), dOut = values("dOut"), out = values("out"), dv = values("dv");
  const bool fixed = c.perHead();
  const auto gates = [&](const char* name) {
    return CallerTensor(c.gateType, fixed ? 1 : c.batch, fixed ? 1 : count, c.heads, fixed ? 1 : width,
                        fixed || (width == 1 && !c.hasBeta()) ? 0 : gapOf(name), first && !fixed);
  };
  const auto betas = [&] { return CallerTensor(c.betaType, c.batch, count, c.heads, 1, gap, first); };
  auto gate = gates("gate"), dGate = gates("dGate"), beta = betas(), dBeta = betas();
  const auto inputs = [&] { return CallerTensor(options.inputGateType, c.batch, count, c.heads, 1, gap, first); };
  auto input = inputs(), dInput = inputs();
  if (hasInput) input.set(tokensOf(c, *options.inputGate, c.heads, begin, end));
  q.set(tokensOf(c, c.q, c.keyHeads * c.dk, begin, end));
  k.set(tokensOf(c, c.k, c.keyHeads * c.dk, begin, end));
  v.set(tokensOf(c, c.v, c.heads * c.dv, begin, end));
  dOut.set(tokensOf(c, c.dOut, c.heads * c.dv, begin, end));
  if (c.hasBeta()) beta.set(tokensOf(c, c.beta, c.heads, begin, end));
  if (c.hasGate()) gate.set(fixed ? c.gate : tokensOf(c, c.gate, c.heads * width, begin, end));
  result.saved.assign(states, NAN);
  result.final.assign(states, NAN);
  result.dInitial.assign((c.cuSeqlens.empty() ? c.batch : c.cuSeqlens.size() - 1) * c.heads * c.dk * c.dv, NAN);

  const auto* const placement = options.placement;
  for (auto* tensor : {&q, &k, &v, &gate, &beta, &out, &dOut, &dq, &dk, &dv, &dGate, &dBeta, &input, &dInput})
    tensor->place(placement, rank);
  const auto placed = [&](const std::vector<float>& numbers) {
    return Placed(const_cast<float*>(numbers.data()), numbers.size() * sizeof(float), placement, rank);
  };
  const Placed saved = placed(result.saved), final = placed(result.final), dInitial = placed(result.dInitial);
  const Placed initial = placed(c.initial), dFinal = placed(c.dFinal);
  const auto numbers = [](const Placed& from) { return static_cast<float*>(from.data()); };

  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  forward.q = q.view();
  forward.k = k.view();
  forward.v = v.view();
  forward.out = out.view();
  if (c.hasGate()) forward.gates[0] = gate.view();
  if (c.hasBeta()) forward.gates[betaAt] = beta.view();
  if (hasInput) forward.gates[betaAt] = input.view();
  forward.initial = c.hasInitial ? numbers(initial) : nullptr;
  forward.saved = options.training ? numbers(saved) : nullptr;
  // Not every rank requests its final state.
  const bool wantsFinal = rank % 2 == 0 || rank + 1 == static_cast<int>(lengths.size());
  forward.final = wantsFinal ? numbers(final) : nullptr;
  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  std::copy_n(forward.gates, SEQPAR_ATTN_MAX_GATES, backward.gates);
  backward.saved = numbers(saved);
  backward.initial = forward.initial;
  backward.dOut = dOut.view();
  backward.dFinal = c.hasFinalGradient ? numbers(dFinal) : nullptr;
  backward.dq = dq.view();
  backward.dk = dk.view();
  backward.dv = dv.view();
  if (c.hasGate()) backward.dGates[0] = dGate.view();
  if (c.hasBeta()) backward.dGates[betaAt] = dBeta.view();
  if (hasInput) backward.dGates[betaAt] = dInput.view();
  if (options.initialGradient) backward.dInitial = numbers(dInitial);

  size_t reserveBytes = 0;
  seqparAttnPlanReserveSize(owner.plan, &reserveBytes);
  const Reserve reserve(reserveBytes, placement, rank), otherReserve(reserveBytes, placement, rank);
  std::vector<float> otherSaved(options.reserve ? states : 0);
  const Placed otherSavedAt = placed(otherSaved);
  forward.reserve = reserve.data();
  backward.reserve = reserve.data();
  auto other = forward;
  other.q = forward.k;
  other.k = forward.q;
  other.v = backward.dOut;
  other.out = backward.dv;
  other.saved = options.training ? numbers(otherSavedAt) : nullptr;
  other.final = nullptr;
  other.reserve = otherReserve.data();

  const auto calls = [&](void* stream) {
    std::string failed;
    for (int i = 0; i < options.repeats && failed.empty(); ++i) {
      failed = said(seqparAttnForward(owner.plan, &forward, stream));
      if (failed.empty() && options.reserve) failed = said(seqparAttnForward(owner.plan, &other, stream));
      if (failed.empty() && options.training) failed = said(seqparAttnBackward(owner.plan, &backward, stream));
    }
    return failed;
  };
  if (placement != nullptr) {
    placement->barrier();
    text = placement->run(rank, calls);
    placement->barrier();
    for (const auto* tensor : {&out, &dq, &dk, &dv, &dGate, &dBeta, &dInput}) tensor->fetch();
    for (const auto* array : {&saved, &final, &dInitial}) array->fetch();
  } else {
    seqparStream_t stream = nullptr;
    if (options.onStream && seqparStreamCreate(&stream) != seqparSuccess) return seqparGetLastError(nullptr);
    text = calls(stream);
    if (stream != nullptr) {
      if (seqparStreamSynchronize(stream) != seqparSuccess && text.empty()) text = seqparGetLastError(comm);
      seqparStreamDestroy(stream);
    }
  }
  result.out = out.get();
  result.dq = dq.get();
  result.dk = dk.get();
  result.dv = dv.get();
  result.dGate = c.hasGate() ? dGate.get() : std::vector<float>{};
  result.dBeta = c.hasBeta() ? dBeta.get() : std::vector<float>{};
  result.dInput = hasInput ? dInput.get() : std::vector<float>{};
  return text;
}

}  // namespace seqpar::attn::test
