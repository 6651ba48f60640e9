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
  desc.gateType = c.gateType;
  desc.scale = c.scale;
  desc.wireType = options.wireType;
  desc.training = options.training ? 1 : 0;
  Plan owner;
  auto text = said(seqparAttnPlanCreate(&owner.plan, &desc, comm));
  if (text.empty()) text = said(seqparAttnPlanPrepare(owner.plan, nullptr, 0));
  if (!text.empty()) return text;

  const bool first = options.headsFirst;
  const size_t gap = options.padding, width = c.gateWidth(), states = c.states();
  CallerTensor q(c.dataType, c.batch, count, c.keyHeads, c.dk, gap, first), k(q), dq(q), dk(q);
  CallerTensor v(c.dataType, c.batch, count, c.heads, c.dv, gap, first), dOut(v), out(v), dv(v);
  const bool fixed = c.family == seqparAttnFixed;
  CallerTensor gate(c.gateType, fixed ? 1 : c.batch, fixed ? 1 : count, c.heads, fixed ? 1 : width, fixed ? 0 : gap,
                    first && !fixed),
      dGate(gate);
  q.set(tokensOf(c, c.q, c.keyHeads * c.dk, begin, end));
  k.set(tokensOf(c, c.k, c.keyHeads * c.dk, begin, end));
  v.set(tokensOf(c, c.v, c.heads * c.dv, begin, end));
  dOut.set(tokensOf(c, c.dOut, c.heads * c.dv, begin, end));
  if (c.family != seqparAttnSum) gate.set(fixed ? c.gate : tokensOf(c, c.gate, c.heads * width, begin, end));
  result.saved.assign(states, NAN);
  result.final.assign(states, NAN);
  result.dInitial.assign((c.cuSeqlens.empty() ? c.batch : c.cuSeqlens.size() - 1) * c.heads * c.dk * c.dv, NAN);

  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  forward.q = q.view();
  forward.k = k.view();
  forward.v = v.view();
  forward.out = out.view();
  if (c.family != seqparAttnSum) forward.gate = gate.view();
  forward.initial = c.hasInitial ? c.initial.data() : nullptr;
  forward.saved = options.training ? result.saved.data() : nullptr;
  // Not every rank wants its final state.
  forward.final = rank % 2 == 0 || rank + 1 == static_cast<int>(lengths.size()) ? result.final.data() : nullptr;
  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.gate = forward.gate;
  backward.saved = result.saved.data();
  backward.initial = forward.initial;
  backward.dOut = dOut.view();
  backward.dFinal = c.hasFinalGradient ? c.dFinal.data() : nullptr;
  backward.dq = dq.view();
  backward.dk = dk.view();
  backward.dv = dv.view();
  if (c.family != seqparAttnSum) backward.dGate = dGate.view();
  backward.dInitial = result.dInitial.data();

  seqparStream_t stream = nullptr;
  if (options.onStream && seqparStreamCreate(&stream) != seqparSuccess) return seqparGetLastError(nullptr);
  for (int i = 0; i < options.repeats && text.empty(); ++i) {
    text = said(seqparAttnForward(owner.plan, &forward, stream));
    if (text.empty() && options.training) text = said(seqparAttnBackward(owner.plan, &backward, stream));
  }
  if (stream != nullptr) {
    if (seqparStreamSynchronize(stream) != seqparSuccess && text.empty()) text = seqparGetLastError(comm);
    seqparStreamDestroy(stream);
  }
  result.out = out.get();
  result.dq = dq.get();
  result.dk = dk.get();
  result.dv = dv.get();
  result.dGate = c.family == seqparAttnSum ? std::vector<float>{} : dGate.get();
  return text;
}

}  // namespace seqpar::attn::test
