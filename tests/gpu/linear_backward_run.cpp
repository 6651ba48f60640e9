#include "linear_backward_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kernels/attn/linear/pairs.h"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::test {

using namespace attn;

namespace {

constexpr size_t kGuard = 4096;  // bytes behind each buffer that must stay as they are

size_t workspaceSizeOf(const BackwardCase& c) {
  const LinearProblem problem = c.problem(nullptr, nullptr, nullptr, nullptr);
  return gradientsWorkspaceSize(problem, c.segments, gradientsJoinHeads(problem));
}

std::vector<double> exponentials(std::vector<double> logs) {
  for (double& log : logs) log = std::exp(log);
  return logs;
}

}  // namespace

void checkCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

Memory::Memory(size_t bytes, size_t offset) : bytes_(bytes), offset_(offset) {
  void* pointer = nullptr;
  checkCuda(cudaMalloc(&pointer, offset + bytes + kGuard), "cudaMalloc");
  memory_.reset(static_cast<char*>(pointer));
  poison();
}
void Memory::poison() {
  checkCuda(cudaMemset(memory_.get(), 0xff, offset_ + bytes_ + kGuard), "cudaMemset");
}
Bytes Memory::host() const {
  Bytes all(bytes_ + kGuard);
  checkCuda(cudaMemcpy(all.data(), get(), all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (std::any_of(all.begin() + static_cast<std::ptrdiff_t>(bytes_), all.end(),
                  [](char c) { return c != char(0xff); })) {
    std::printf("FAILED: written behind a buffer of %zu bytes\n", bytes_);
    ++failures;
  }
  all.resize(bytes_);
  return all;
}

Tolerance toleranceOf(const BackwardShape& shape) {
  // A factor below 2^-126 is 0 in fp32; a result with an error of 2^-9 must be larger by that factor, and its terms are
  // below 2^10.
  const double underflow = std::ldexp(1.0, -126 + 9 + 10);
  if (shape.type == seqparBfloat16) return {std::ldexp(1.0, -9), underflow};
  if (shape.type == seqparFloat16) return {std::ldexp(1.0, -12), std::ldexp(1.0, -13)};
  // fp32: additions are as many as tokens; exponentials are good to 2^-22, and what they multiply lasts as many tokens
  // as the decay lets it.
  const auto tokens = static_cast<double>(std::max<int64_t>(shape.tokens, 16));
  const double lasting = std::min(tokens, shape.decay > 0 ? 1 / shape.decay : tokens);
  return {std::ldexp(std::sqrt(tokens), -24) + std::ldexp(lasting, -24), underflow};
}

void Errors::add(const char* name, const std::vector<double>& found, const std::vector<double>& expected, double most,
                 double least) {
  const double error = relativeError(found, expected, least);
  char line[64];
  std::snprintf(line, sizeof line, " %s %.1e%s", name, error, error <= most ? "" : "!!");
  text += line;
  good &= error <= most;  // NaN is none
}

Run::Run(const BackwardCase& given, bool odd)
    : c(given),
      gated(c.v, c.problem(nullptr, nullptr, nullptr, nullptr), c.shape.inputGates ? 1 : 0),
      q(c.q),
      k(c.k),
      v(c.shape.inputGates ? gated.values : c.v),
      gates(c.gates),
      inputGates(gated.gates),
      dOut(c.dOut),
      spans(c.spans),
      initial(c.initial),
      dFinal(c.dFinal),
      before(c.before),
      beforeLog(c.beforeLog),
      after(c.after.size() * 4),
      afterLog(c.afterLog.size() * 4),
      stateGradient(c.stateGradient.size() * 4),
      logDecay(c.logDecay.size() * 4),
      dq(c.q.size(), odd ? 2 : 0),
      dk(c.k.size(), odd ? 2 : 0),
      dv(c.v.size(), odd ? 2 : 0),
      dGates(c.gates.size(), odd ? sizeOf(static_cast<seqparDataType_t>(c.shape.gateType)) : 0),
      dInputGates(gated.gates.size() * 4),
      dInitial(c.stateGradient.size() * 4),
      workspace(workspaceSizeOf(c)) {
  problem = c.problem(q.get(), k.get(), v.get(), gates.get());
  if (c.shape.inputGates) {
    problem.inputGates = {inputGates.get(), c.shape.tokens * problem.heads, problem.heads, 1};
  }
  segments = c.segmentsAt(reinterpret_cast<const Span*>(spans.get()));
}

SegmentStateGradients Run::maps() const {
  SegmentStateGradients pass;
  pass.problem = problem;
  pass.segments = segments;
  pass.heads = {0, problem.heads};
  pass.dOut = c.dOutput(dOut.get());
  pass.maps = {after.floats(), afterLog.floats()};
  pass.stateGradient = mapWanted ? stateGradient.floats() : nullptr;
  pass.logDecay = mapWanted ? logDecay.floats() : nullptr;
  pass.content = c.shape.content;
  return pass;
}

Gradients Run::gradients() const {
  Gradients pass;
  pass.problem = problem;
  pass.segments = segments;
  pass.heads = {0, problem.heads};
  pass.dOut = c.dOutput(dOut.get());
  pass.before = {before.floats(), beforeLog.floats()};
  pass.after = {after.floats(), afterLog.floats()};
  pass.content = c.shape.content;
  pass.initial = c.initial.empty() ? nullptr : initial.floats();
  pass.finalGradient = c.dFinal.empty() ? nullptr : dFinal.floats();
  const auto like = [](const Input& input, const Memory& memory) {
    return Output{memory.get(), input.batch, input.token, input.head};
  };
  pass.dq = like(problem.q, dq);
  pass.dk = like(problem.k, dk);
  pass.dv = like(problem.v, dv);
  pass.dGates = like(problem.gates, dGates);
  if (problem.gate == Gate::Head) pass.dGates.head = 1;
  pass.dGateType = problem.gateType;
  if (c.shape.inputGates) pass.dInputGates = like(problem.inputGates, dInputGates);
  pass.dInitial = dInitial.floats();
  pass.workspace = workspace.get();
  return pass;
}

void Run::launch(const Launch& on) const {
  LaunchSequence sequence;
  const Launch where{on.stream, on.ctas, &sequence};
  if (c.shape.content == Maps::PerSegment) {  // as a call has it, one launch right behind the other
    SegmentStates pass{problem, segments, {0, problem.heads}, {before.floats(), beforeLog.floats()}};
    pass.content = Maps::PerSegment;
    checkCuda(static_cast<cudaError_t>(launchSegmentStates(pass, where)), "launchSegmentStates");
  }
  checkCuda(static_cast<cudaError_t>(launchSegmentStateGradients(maps(), where)), "launchSegmentStateGradients");
  checkCuda(static_cast<cudaError_t>(launchGradients(gradients(), where)), "launchGradients");
}

std::vector<Bytes> Run::results() const {
  std::vector<Bytes> all;
  for (const Memory* memory : {&after, &stateGradient, &logDecay, &dq, &dk, &dv, &dGates, &dInputGates, &dInitial}) {
    all.push_back(memory->host());
  }
  workspace.host();
  return all;
}

void Run::poisonResults() {
  for (Memory* memory :
       {&after, &afterLog, &stateGradient, &logDecay, &dq, &dk, &dv, &dGates, &dInputGates, &dInitial, &workspace}) {
    memory->poison();
  }
}

void Run::compareGradients(Errors& errors) const {
  const Tolerance most = toleranceOf(c.shape);
  errors.add("dq", valuesOf(dq.host(), c.shape.type), c.expected.dq, most.values(), most.least);
  errors.add("dk", valuesOf(dk.host(), c.shape.type), c.expected.dk, most.values(), most.least);
  compareValues(errors, most);
  if (c.gateNumbers() == 0) return;
  const double rounding = c.shape.gateType == seqparBfloat16 ? std::ldexp(1.0, -9) : 0;
  errors.add("dGates", valuesOf(dGates.host(), c.shape.gateType), c.expectedGates(), most.gates(c) + rounding,
             most.least);
}

void Run::compareValues(Errors& errors, const Tolerance& most) const {
  std::vector<double> values = c.expected.dv;
  if (c.shape.inputGates) {
    const std::vector<double> given = valuesOf(gated.values, c.shape.type);
    std::vector<double> expected(gated.gates.size(), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / static_cast<size_t>(c.shape.dv);
      expected[row] += given[i] * values[i];
      values[i] *= static_cast<double>(gated.gates[row]);
    }
    errors.add("dInputGates", valuesOf(dInputGates.host(), seqparFloat32), expected, most.values(), most.least);
  }
  errors.add("dv", valuesOf(dv.host(), c.shape.type), values, most.values(), most.least);
}

void Run::compare(Errors& errors) const {
  const Tolerance most = toleranceOf(c.shape);
  const auto floats = [](const Memory& memory) { return valuesOf(memory.host(), seqparFloat32); };
  const auto wide = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  if (c.continues()) {
    errors.add("map", floats(stateGradient), wide(c.stateGradient), most.values(), most.least);
    // Log-decays of factors that are 0 in fp32 may be -inf.
    errors.add("decay", exponentials(floats(logDecay)), exponentials(wide(c.logDecay)), 1e-4, std::ldexp(1.0, -126));
  }
  compareGradients(errors);
  if (c.continues()) errors.add("dInitial", floats(dInitial), c.expected.dInitial, most.values(), most.least);
}

}  // namespace seqpar::test
