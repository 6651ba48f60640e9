// The backward kernels of linear attention against the fp64 reference. Exit status 77: no GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/linear_backward_case.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::test;

namespace {

int failures = 0;

void checkCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

constexpr size_t kGuard = 4096;  // bytes behind each buffer that must stay as they are

/// Device memory, all bits set at first: NaN in every type.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    void* pointer = nullptr;
    checkCuda(cudaMalloc(&pointer, bytes + kGuard), "cudaMalloc");
    memory_.reset(static_cast<char*>(pointer));
    poison();
  }
  template <class T>
  explicit Memory(const std::vector<T>& host) : Memory(host.size() * sizeof(T)) {
    checkCuda(cudaMemcpy(memory_.get(), host.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void poison() { checkCuda(cudaMemset(memory_.get(), 0xff, bytes_ + kGuard), "cudaMemset"); }
  char* get() const { return memory_.get(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.get()); }
  Bytes host() const {
    Bytes all(bytes_ + kGuard);
    checkCuda(cudaMemcpy(all.data(), memory_.get(), all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (std::any_of(all.begin() + static_cast<std::ptrdiff_t>(bytes_), all.end(),
                    [](char c) { return c != char(0xff); })) {
      std::printf("FAILED: written behind a buffer of %zu bytes\n", bytes_);
      ++failures;
    }
    all.resize(bytes_);
    return all;
  }

 private:
  struct Free {
    void operator()(char* pointer) const { cudaFree(pointer); }
  };
  size_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

/// The roundings behind a number, each at most `unit` of it and independent: operands, states and results are rounded
/// once each. In fp16, what is below 2^-14 has errors of 2^-25 whatever its size, so nothing is compared with less than
/// `least`.
struct Tolerance {
  double unit, least;
  double values() const { return 4 * unit; }
  double gates(const BackwardCase& c) const { return values() * (1 + c.gateRoundings(64, least)); }
};
Tolerance toleranceOf(const BackwardShape& shape) {
  // A factor below 2^-126 is 0 in fp32; what is to be good to 2^-9 has to be that much larger, and what it is made of
  // is below 2^10.
  const double underflow = std::ldexp(1.0, -126 + 9 + 10);
  if (shape.type == seqparBfloat16) return {std::ldexp(1.0, -9), underflow};
  if (shape.type == seqparFloat16) return {std::ldexp(1.0, -12), std::ldexp(1.0, -13)};
  // fp32: additions are as many as tokens; exponentials are good to 2^-22, and what they multiply lasts as many tokens
  // as the decay lets it.
  const auto tokens = static_cast<double>(std::max<int64_t>(shape.tokens, 16));
  const double lasting = std::min(tokens, shape.decay > 0 ? 1 / shape.decay : tokens);
  return {std::ldexp(std::sqrt(tokens), -24) + std::ldexp(lasting, -24), underflow};
}

struct Errors {
  std::string text;
  bool good = true;
  void add(const char* name, const std::vector<double>& found, const std::vector<double>& expected, double most,
           double least = 0) {
    const double error = relativeError(found, expected, least);
    char line[64];
    std::snprintf(line, sizeof line, " %s %.1e%s", name, error, error <= most ? "" : "!!");
    text += line;
    good &= error <= most;  // NaN is none
  }
};

std::vector<double> exponentials(std::vector<double> logs) {
  for (double& log : logs) log = std::exp(log);
  return logs;
}

/// Both passes of one rank on the GPU.
struct Run {
  const BackwardCase& c;
  Memory q, k, v, gates, dOut, starts, initial, dFinal, before, beforeLog;
  Memory after, afterLog, stateGradient, logDecay, dq, dk, dv, dGates, dInitial, workspace;
  LinearProblem problem;

  explicit Run(const BackwardCase& given)
      : c(given),
        q(c.q),
        k(c.k),
        v(c.v),
        gates(c.gates),
        dOut(c.dOut),
        starts(c.shape.starts),
        initial(c.initial),
        dFinal(c.dFinal),
        before(c.before),
        beforeLog(c.beforeLog),
        after(c.after.size() * 4),
        afterLog(c.afterLog.size() * 4),
        stateGradient(c.stateGradient.size() * 4),
        logDecay(c.logDecay.size() * 4),
        dq(c.q.size()),
        dk(c.k.size()),
        dv(c.v.size()),
        dGates(c.gates.size()),
        dInitial(c.stateGradient.size() * 4),
        workspace(gradientsWorkspaceSize(c.problem(nullptr, nullptr, nullptr, nullptr, nullptr), c.segments)) {
    problem = c.problem(q.get(), k.get(), v.get(), gates.get(),
                        c.shape.starts.empty() ? nullptr : reinterpret_cast<const int64_t*>(starts.get()));
  }

  SegmentStateGradients maps() const {
    SegmentStateGradients pass;
    pass.problem = problem;
    pass.segments = c.segments;
    pass.heads = {0, problem.heads};
    pass.dOut = c.dOutput(dOut.get());
    pass.maps = {after.floats(), afterLog.floats()};
    pass.stateGradient = stateGradient.floats();
    pass.logDecay = logDecay.floats();
    return pass;
  }
  Gradients gradients() const {
    Gradients pass;
    pass.problem = problem;
    pass.segments = c.segments;
    pass.heads = {0, problem.heads};
    pass.dOut = c.dOutput(dOut.get());
    pass.before = {before.floats(), beforeLog.floats()};
    pass.after = {after.floats(), afterLog.floats()};
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
    pass.dInitial = dInitial.floats();
    pass.workspace = workspace.get();
    return pass;
  }
  void launch(const Launch& where) const {
    checkCuda(static_cast<cudaError_t>(launchSegmentStateGradients(maps(), where)), "launchSegmentStateGradients");
    checkCuda(static_cast<cudaError_t>(launchGradients(gradients(), where)), "launchGradients");
  }
  std::vector<Bytes> results() const {
    std::vector<Bytes> all;
    for (const Memory* memory : {&after, &stateGradient, &logDecay, &dq, &dk, &dv, &dGates, &dInitial}) {
      all.push_back(memory->host());
    }
    workspace.host();
    return all;
  }
  void compare(Errors& errors) const {
    const Tolerance most = toleranceOf(c.shape);
    const int type = c.shape.type;
    const auto floats = [](const Memory& memory) { return valuesOf(memory.host(), seqparFloat32); };
    const auto wide = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
    errors.add("map", floats(stateGradient), wide(c.stateGradient), most.values(), most.least);
    errors.add("decay", exponentials(floats(logDecay)), exponentials(wide(c.logDecay)), 1e-4);
    errors.add("dq", valuesOf(dq.host(), type), c.expected.dq, most.values(), most.least);
    errors.add("dk", valuesOf(dk.host(), type), c.expected.dk, most.values(), most.least);
    errors.add("dv", valuesOf(dv.host(), type), c.expected.dv, most.values(), most.least);
    errors.add("dInitial", floats(dInitial), c.expected.dInitial, most.values(), most.least);
    if (c.gateNumbers() > 0) {
      const double rounding = c.shape.gateType == seqparBfloat16 ? std::ldexp(1.0, -9) : 0;
      errors.add("dGates", valuesOf(dGates.host(), c.shape.gateType), c.expectedGates(), most.gates(c) + rounding,
                 most.least);
    }
  }
};

void report(const BackwardCase& c, uint64_t seed, const Errors& errors, const char* what = "") {
  std::printf("%s %s%s:%s (seed %llu)\n", errors.good ? "ok    " : "FAILED", what, c.shape.name().c_str(),
              errors.text.c_str(), static_cast<unsigned long long>(seed));
  if (!errors.good) ++failures;
}

/// Against the reference, then from a graph with few CTAs into poisoned memory, to the same bits.
void check(const BackwardCase& c, uint64_t seed) {
  Run run(c);
  run.launch({});
  checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  Errors errors;
  run.compare(errors);
  const auto first = run.results();
  for (Memory* memory : {&run.after, &run.afterLog, &run.stateGradient, &run.logDecay, &run.dq, &run.dk, &run.dv,
                         &run.dGates, &run.dInitial, &run.workspace}) {
    memory->poison();
  }
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  checkCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  run.launch({stream, 3});
  checkCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  checkCuda(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  checkCuda(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
  checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  if (run.results() != first) {
    errors.text += " other bits with 3 CTAs!!";
    errors.good = false;
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  report(c, seed, errors);
}

/// Two ranks by hand: each has a part of the tokens; their maps are combined here, as All-Scan would.
void checkRanks(BackwardShape shape, int64_t cutAt, uint64_t seed) {
  const BackwardCase whole(shape, seed);
  LinearShape first = whole.reference;
  first.tokens = cutAt;
  const LinearOutputs states = linearReference(first, whole.inputs);  // reads the first tokens only: batch is 1
  std::vector<float> incoming = whole.dFinal;
  Errors errors;
  for (int rank = 1; rank >= 0; --rank) {
    const int64_t from = rank == 0 ? 0 : cutAt, count = rank == 0 ? cutAt : shape.tokens - cutAt;
    BackwardCase part(whole);
    part.shape.tokens = count;
    part.segments.count = 1;
    part.segments.tokens = (count + kChunkTokens - 1) / kChunkTokens * kChunkTokens;
    const auto rows = [&](Bytes& all) {
      const auto width = static_cast<int64_t>(all.size()) / shape.tokens;
      all = Bytes(all.begin() + from * width, all.begin() + (from + count) * width);
    };
    for (Bytes* tensor : {&part.q, &part.k, &part.v, &part.dOut, &part.gates}) rows(*tensor);
    const auto numbers = [&](std::vector<double>& all) {
      const auto width = static_cast<int64_t>(all.size()) / shape.tokens;
      all = std::vector<double>(all.begin() + from * width, all.begin() + (from + count) * width);
    };
    numbers(part.expected.dq);
    numbers(part.expected.dk);
    numbers(part.expected.dv);
    numbers(part.expected.dLogDecay);
    part.reference.tokens = count;
    part.before.assign(whole.stateGradient.size(), std::nanf(""));  // of one segment, none is read
    part.beforeLog.assign(whole.logDecay.size(), std::nanf(""));
    part.after.assign(whole.stateGradient.size(), 0);
    part.afterLog.assign(whole.logDecay.size(), 0);
    if (rank == 1) part.initial.assign(states.finalState.begin(), states.finalState.end());
    part.dFinal = incoming;
    Run run(part);
    run.launch({});
    checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto map = valuesOf(run.stateGradient.host(), seqparFloat32),
               logs = valuesOf(run.logDecay.host(), seqparFloat32);
    const Tolerance most = toleranceOf(shape);
    errors.add("dq", valuesOf(run.dq.host(), shape.type), part.expected.dq, most.values(), most.least);
    errors.add("dk", valuesOf(run.dk.host(), shape.type), part.expected.dk, most.values(), most.least);
    errors.add("dv", valuesOf(run.dv.host(), shape.type), part.expected.dv, most.values(), most.least);
    errors.add("dGates", valuesOf(run.dGates.host(), shape.gateType), part.expectedGates(), most.gates(part),
               most.least);
    for (size_t i = 0; i < incoming.size(); ++i) {
      const size_t row = logs.size() == whole.logDecay.size() && shape.gate == Gate::Channel
                             ? i / shape.dv
                             : i / (shape.dv * shape.dk);
      incoming[i] = static_cast<float>(std::exp(logs[row]) * incoming[i] + map[i]);
    }
    if (rank == 0) {
      const auto own = valuesOf(run.dInitial.host(), seqparFloat32);
      errors.add("dInitial", own, whole.expected.dInitial, most.values(), most.least);
      errors.add("map", std::vector<double>(incoming.begin(), incoming.end()), whole.expected.dInitial, most.values(),
                 most.least);
    }
  }
  report(whole, seed, errors, "two ranks, ");
}

/// The references take longer than the GPU does, so they are made on all cores.
void checkThese(const std::vector<BackwardShape>& shapes, uint64_t seed) {
  std::vector<std::future<std::unique_ptr<BackwardCase>>> cases;
  const size_t ahead = std::max(std::thread::hardware_concurrency(), 1u);
  for (size_t i = 0, next = 0; i < shapes.size(); ++i) {
    for (; next < std::min(i + ahead, shapes.size()); ++next) {
      cases.push_back(std::async(std::launch::async, [&shapes, seed, next] {
        return std::make_unique<BackwardCase>(shapes[next], seed + next);
      }));
    }
    check(*cases[i].get(), seed + i);
  }
}

void checkAll(uint64_t seed, bool small) {
  const double kSlow = 0.002, kMiddle = 0.05, kStrong = 30, kForgets = std::numeric_limits<double>::infinity();
  BackwardShape base;
  base.dk = base.dv = 128;
  base.segmentTokens = 128;
  std::vector<BackwardShape> shapes;
  const auto with = [&](const std::function<void(BackwardShape&)>& change) {
    BackwardShape shape = base;
    change(shape);
    shapes.push_back(shape);
  };
  const std::vector<int64_t> lengths =
      small ? std::vector<int64_t>{65} : std::vector<int64_t>{0, 1, 2, 15, 63, 64, 65, 1000, 2041};
  for (const int64_t tokens : lengths) {
    for (const Gate gate : {Gate::Channel, Gate::Token}) {
      with([&](auto& s) { s.tokens = tokens, s.gate = gate, s.segmentTokens = tokens > 500 ? 256 : 64; });
    }
  }
  if (small) {
    checkThese(shapes, seed);
    return checkRanks(base, 33, seed);
  }
  for (const int type : {seqparBfloat16, seqparFloat16, seqparFloat32}) {
    for (const Gate gate : {Gate::None, Gate::Head, Gate::Token, Gate::Channel}) {
      with([&](auto& s) { s.type = type, s.gate = gate, s.tokens = 300, s.heads = 4, s.qkHeads = 2; });
      with([&](auto& s) {
        s.type = type, s.gate = gate, s.tokens = 200, s.batch = 2, s.heads = 3, s.qkHeads = 3, s.states = false,
        s.dk = s.dv = 64;
      });
    }
    with([&](auto& s) { s.type = type, s.gateType = seqparBfloat16, s.tokens = 300, s.heads = 2, s.qkHeads = 2; });
    with([&](auto& s) {
      s.type = type, s.gateType = seqparBfloat16, s.tokens = 130, s.heads = 2, s.dk = 256, s.dv = 256;
    });
    for (const Gate gate : {Gate::Token, Gate::Channel}) {
      for (const double decay : {kSlow, kMiddle, 1.0, kStrong, kForgets, 0.0}) {
        with([&](auto& s) { s.type = type, s.gate = gate, s.tokens = 400, s.decay = decay; });
      }
      with(
          [&](auto& s) { s.type = type, s.gate = gate, s.tokens = 333, s.starts = {0, 1, 2, 64, 100, 101, 128, 320}; });
      with([&](auto& s) {
        s.type = type, s.gate = gate, s.tokens = 333, s.starts = {-5, 77, 200, 900}, s.decay = kForgets;
      });
    }
  }
  for (const auto& [dk, dv] : {std::pair{16, 16},
                               {16, 128},
                               {48, 80},
                               {64, 128},
                               {96, 64},
                               {112, 112},
                               {128, 256},
                               {256, 128},
                               {256, 256},
                               {144, 208}}) {
    for (const Gate gate : {Gate::Token, Gate::Channel}) {
      with([&, dk = dk, dv = dv](auto& s) {
        s.dk = dk, s.dv = dv, s.gate = gate, s.tokens = 150, s.heads = 2, s.qkHeads = 1;
      });
    }
  }
  checkThese(shapes, seed);
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    for (const double decay : {kSlow, 1.0}) {
      BackwardShape shape = base;
      shape.gate = gate;
      shape.tokens = 700;
      shape.decay = decay;
      checkRanks(shape, 301, seed++);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  checkAll(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}(), small);
  std::printf(failures == 0 ? "all good\n" : "%d FAILED\n", failures);
  return failures == 0 ? 0 : 1;
}
