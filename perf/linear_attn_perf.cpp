// linear_attn_perf: linear attention through a plan, forward and backward, by every algorithm beside LOCAL, which
// exchanges nothing.
#include <cmath>
#include <memory>

#include "common/buffer.h"
#include "common/session.h"
#include "common/values.h"
#include "seqpar/attn.h"

namespace seqpar::perf {
namespace {

const Names kFamilies{
    {"gla", seqparAttnGla}, {"scalar", seqparAttnScalar}, {"fixed", seqparAttnFixed}, {"sum", seqparAttnSum}};
const Names kAlgorithms{
    {"local", seqparAttnLocal}, {"zeco", seqparAttnZeco}, {"lasp1", seqparAttnLasp1}, {"lasp2", seqparAttnLasp2}};
enum Pass { kForward, kBackward, kStep };
const Names kPasses{{"forward", kForward}, {"backward", kBackward}, {"step", kStep}};

struct Choices {
  std::vector<int> families{seqparAttnGla};
  std::vector<int> algorithms{seqparAttnLocal, seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};
  std::vector<int> passes{kForward, kBackward, kStep};
  size_t batch = 1, heads = 8, keyHeads = 0, keyDim = 128, valueDim = 0;
  int type = seqparFloat32, gateType = seqparFloat32, wireType = seqparFloat32;
};

void requireAttn(seqparResult_t result, const char* call) {
  if (result != seqparSuccess) throw std::runtime_error(std::string(call) + ": " + seqparAttnGetLastError());
}

/// The tokens of a rank whose queries have about SIZE bytes.
size_t tokensFor(size_t bytes, const Choices& c) {
  const size_t token = c.batch * c.keyHeads * c.keyDim * bytesOf(c.type);
  return std::max<size_t>(1, (bytes + token / 2) / token);
}

/// One rank's arrays, which the plans of all algorithms work on.
class Arrays {
 public:
  Arrays(const Choices& c, int family, size_t tokens, Group& group)
      : c_(c), family_(family), rows_(c.batch * tokens), comm_(group.comm()) {
    const size_t keys = rows_ * c.keyHeads * c.keyDim, values = rows_ * c.heads * c.valueDim;
    for (auto* buffer : {&q_, &k_, &dq_, &dk_}) *buffer = make(keys, c.type);
    for (auto* buffer : {&v_, &out_, &dOut_, &dv_}) *buffer = make(values, c.type);
    gates_ = family == seqparAttnGla      ? rows_ * c.heads * c.keyDim
             : family == seqparAttnScalar ? rows_ * c.heads
             : family == seqparAttnFixed  ? c.heads
                                          : 0;
    for (auto* buffer : {&gate_, &dGate_}) *buffer = make(gates_, c.gateType);
    saved_ = make(c.batch * c.heads * c.keyDim * c.valueDim, seqparFloat32);
    unsigned state = 12345u + static_cast<unsigned>(group.rank());
    const auto next = [&] {
      state = state * 1664525u + 1013904223u;
      return static_cast<float>(state >> 16) * 0x1p-16f;
    };
    for (auto* buffer : {&q_, &k_, &v_, &dOut_}) fill(**buffer, c.type, [&] { return 2 * next() - 1; });
    // As GLA's gates are: the sixteenth part of the logarithm of a sigmoid.
    fill(*gate_, c.gateType, [&] { return std::log(0.25f + 0.75f * next()) / 16; });
  }

  seqparAttnForwardArgs_t forward() const {
    seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
    args.q.data = q_->data();
    args.k.data = k_->data();
    args.v.data = v_->data();
    args.gate.data = gate_->data();
    args.out.data = out_->data();
    args.saved = static_cast<float*>(saved_->data());
    return args;
  }
  seqparAttnBackwardArgs_t backward() const {
    seqparAttnBackwardArgs_t args = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    args.q.data = q_->data();
    args.k.data = k_->data();
    args.v.data = v_->data();
    args.gate.data = gate_->data();
    args.saved = static_cast<const float*>(saved_->data());
    args.dOut.data = dOut_->data();
    args.dq.data = dq_->data();
    args.dk.data = dk_->data();
    args.dv.data = dv_->data();
    if (gates_ > 0) args.dGate.data = dGate_->data();
    return args;
  }

  /// Bytes that a pass cannot do without: its inputs once and its outputs once.
  size_t minimalBytes(Pass pass) const {
    const size_t keys = q_->bytes(), values = v_->bytes(), gates = gate_->bytes();
    const size_t forward = 2 * keys + 2 * values + gates, backward = 4 * keys + 3 * values + 2 * gates;
    return pass == kForward ? forward : pass == kBackward ? backward : forward + backward;
  }
  /// Operations of the matrix products of chunks of 64 tokens.
  double flops(Pass pass) const {
    const auto dk = static_cast<double>(c_.keyDim), dv = static_cast<double>(c_.valueDim), chunk = 64.0;
    const double forward = 2 * chunk * (dk + dv) + 4 * dk * dv;
    const double backward = chunk * (6 * dk + 4 * dv) + 12 * dk * dv;
    return static_cast<double>(rows_ * c_.heads) * (pass == kForward    ? forward
                                                    : pass == kBackward ? backward
                                                                        : forward + backward);
  }

  void spoil(Pass pass) {
    if (pass != kBackward) out_->fill(0xff);
    if (pass == kForward) return;
    for (auto* buffer : {&dq_, &dk_, &dv_}) (*buffer)->fill(0xff);
  }
  /// Outputs that were not written, or came to no number.
  size_t wrong(Pass pass) {
    size_t count = pass == kBackward ? 0 : notNumbers(*out_);
    if (pass != kForward) count += notNumbers(*dq_) + notNumbers(*dk_) + notNumbers(*dv_);
    return count;
  }

 private:
  using BufferPointer = std::unique_ptr<Buffer>;
  BufferPointer make(size_t count, int type) const { return std::make_unique<Buffer>(count * bytesOf(type), comm_); }

  template <class Next>
  static void fill(Buffer& buffer, int type, Next next) {
    std::vector<float> numbers(buffer.bytes() / bytesOf(type));
    // Numbers of 8 bits, which all types have exactly.
    for (auto& number : numbers) number = std::ldexp(std::round(std::ldexp(next(), 7)), -7);
    encode(numbers, type, buffer.as<std::byte>());
    buffer.upload();
  }
  size_t notNumbers(Buffer& buffer) const {
    buffer.download();
    size_t count = 0;
    const size_t numbers = buffer.bytes() / bytesOf(c_.type);
    for (size_t i = 0; i < numbers; ++i) count += std::isfinite(decode(buffer.as<std::byte>(), i, c_.type)) ? 0 : 1;
    return count;
  }

  const Choices& c_;
  int family_;
  size_t rows_, gates_ = 0;
  seqparComm_t comm_;
  BufferPointer q_, k_, v_, gate_, out_, dOut_, dq_, dk_, dv_, dGate_, saved_;
};

struct Plan {
  Plan(const Choices& c, int family, int algorithm, size_t tokens, Group& group) {
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.family = family;
    desc.algorithm = algorithm;
    desc.batch = static_cast<int64_t>(c.batch);
    desc.tokens = static_cast<int64_t>(tokens) * group.size();
    desc.heads = static_cast<int64_t>(c.heads);
    desc.kvHeads = static_cast<int64_t>(c.keyHeads);
    desc.headDim = static_cast<int64_t>(c.keyDim);
    desc.valueDim = static_cast<int64_t>(c.valueDim);
    desc.dataType = c.type;
    desc.gateType = c.gateType;
    desc.wireType = c.wireType;
    requireAttn(seqparAttnPlanCreate(&plan, &desc, group.comm()), "seqparAttnPlanCreate");
    requireAttn(seqparAttnPlanPrepare(plan, nullptr, 0), "seqparAttnPlanPrepare");
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() { seqparAttnPlanDestroy(plan); }
  seqparAttnPlan_t plan = nullptr;
};

Work workOf(const std::shared_ptr<Plan>& plan, const std::shared_ptr<Arrays>& arrays, Pass pass, void* stream) {
  Work work;
  work.prepare = [arrays, pass] { arrays->spoil(pass); };
  work.run = [=, forward = arrays->forward(), backward = arrays->backward()] {
    if (pass != kBackward) requireAttn(seqparAttnForward(plan->plan, &forward, stream), "seqparAttnForward");
    if (pass != kForward) requireAttn(seqparAttnBackward(plan->plan, &backward, stream), "seqparAttnBackward");
  };
  work.wrong = [arrays, pass] { return arrays->wrong(pass); };
  return work;
}

void measureShape(Session& session, const Choices& c, int family, size_t tokens) {
  const auto arrays = std::make_shared<Arrays>(c, family, tokens, session.group);
  for (const int pass : c.passes) {
    std::vector<Case> cases;
    for (const int algorithm : c.algorithms) {
      // On one rank they are all the same.
      if (session.group.size() == 1 && algorithm != c.algorithms.front()) continue;
      const auto plan = std::make_shared<Plan>(c, family, algorithm, tokens, session.group);
      Row row;
      row.bytes = arrays->minimalBytes(static_cast<Pass>(pass));
      row.count = tokens;
      row.labels = {nameOf(family, kFamilies), nameOf(pass, kPasses), nameOf(algorithm, kAlgorithms)};
      cases.push_back({row, workOf(plan, arrays, static_cast<Pass>(pass), session.stream), {}});
    }
    auto rows = session.measure(cases);
    double local = std::nan("");
    for (size_t i = 0; i < rows.size(); ++i) {
      if (c.algorithms[i] == seqparAttnLocal) local = rows[i].outOfPlace.us;
    }
    for (auto& row : rows) {
      const double us = row.outOfPlace.us;
      row.extras = {arrays->flops(static_cast<Pass>(pass)) / us * 1e-3, (us / local - 1) * 100, us - local};
      session.report.row(row);
    }
  }
}

void runAll(Session& session, const Choices& choices) {
  for (const int family : choices.families) {
    for (const size_t size : session.settings.sizes()) {
      measureShape(session, choices, family, tokensFor(size, choices));
    }
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program;
  program.name = "linear_attn_perf";
  program.summary =
      "Linear attention over a sequence that is sharded across the ranks, by several algorithms in turns. SIZE is "
      "that\n"
      "of a rank's queries, count its tokens. The size column, and with it the bandwidths, are those of the memory "
      "that\n"
      "a pass cannot do without: its inputs once and its outputs once. GFLOP/s are those of matrix products in chunks "
      "of\n"
      "64 tokens. LOCAL exchanges nothing; what the others take beside it is their communication as far as it shows.";
  program.knowsGpus = true;
  program.layout = [] {
    return Layout{{{"family", "", 7, InPlot::Panel}, {"pass", "", 9}, {"by", "", 6}},
                  false,
                  {{"rate", "(GF/s)", 9}, {"over", "(%)", 8}, {"exposed", "(us)", 10}}};
  };
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames('F', "family", "gla, scalar, fixed, sum or all (gla)", kFamilies, choices.families);
    parser.addNames(0, "algo", "local, zeco, lasp1, lasp2 or all (all)", kAlgorithms, choices.algorithms);
    parser.addNames('p', "pass", "forward, backward, step (both) or all (all)", kPasses, choices.passes);
    parser.addCount(0, "batch", "sequences (1)", 1 << 20, choices.batch);
    parser.addCount(0, "heads", "heads of values (8)", 1 << 20, choices.heads);
    parser.addCount(0, "kv-heads", "heads of queries and keys (as many)", 1 << 20, choices.keyHeads);
    parser.addCount(0, "head-dim", "length of a query (128)", 1 << 20, choices.keyDim);
    parser.addCount(0, "value-dim", "length of a value (as a query)", 1 << 20, choices.valueDim);
    parser.addName('d', "datatype", "float, half or bfloat16 (float)", typeNames(), choices.type);
    parser.addName(0, "gates", "float or bfloat16 (float)", typeNames(), choices.gateType);
    parser.addName(0, "wire", "float, half or bfloat16 (float)", typeNames(), choices.wireType);
  };
  program.checkOptions = [&](Settings&) {
    if (choices.keyHeads == 0) choices.keyHeads = choices.heads;
    if (choices.valueDim == 0) choices.valueDim = choices.keyDim;
  };
  program.body = [&](Session& session) { runAll(session, choices); };
  return runProgram(program, argc, argv);
}
