#include "attn/linear/device/passes.h"

#include "device/cuda.h"

namespace seqpar::attn::linear {
namespace {

constexpr const char* kWho = "linear attention on a GPU";

Input inputOf(const Tensor& tensor) {
  return {tensor.data, tensor.batchStride, tensor.tokenStride, tensor.headStride};
}

Output outputOf(const Tensor& tensor) {
  return {tensor.data, tensor.batchStride, tensor.tokenStride, tensor.headStride};
}

void check(int error, const char* launch) {
  checkCuda(static_cast<cudaError_t>(error), launch);
}

}  // namespace

DevicePasses::DevicePasses(const Shard& shard, Exec& exec) : shard_(shard), exec_(exec) {
  if (const char* const reason = whyNoKernel(shard)) {
    fail(seqparInvalidUsage, kWho, ": no kernel for this: ", reason);
  }
  for (const auto& piece : shard_.pieces) {
    if (piece.begins) starts_.push_back(static_cast<int64_t>(piece.first));
  }
  const CurrentDevice current(exec.device());
  auto problem = kernelProblem(shard);
  alignas(16) static const char kSomewhere[16] = {};
  problem.gates.data = problem.q.data = problem.k.data = problem.v.data = kSomewhere;
  const int ctas = ctasAtOnce(problem);
  if (ctas == 0) fail(seqparInvalidUsage, kWho, ": no kernel for device ", exec.device(), ", expected sm_80 or newer");
  segments_ = cutIntoSegments(problem, ctas);
}

void DevicePasses::carve(Arena& arena) {
  const auto problem = kernelProblem(shard_);
  const auto maps = [&] {
    const size_t bytes = segmentMapsSize(problem, segments_);
    void* const memory = arena.take(bytes);
    return memory == nullptr ? SegmentMaps{} : segmentMapsIn(memory, problem, segments_);
  };
  before_ = maps();
  if (shard_.training) {
    after_ = maps();
    workspace_ = arena.take(gradientsWorkspaceSize(problem, segments_));
  }
  if (!shard_.alone) {
    rankState_ = static_cast<float*>(arena.take(shard_.states() * sizeof(float)));
    rankDecay_ = static_cast<float*>(arena.take(shard_.allHeads() * shard_.width() * sizeof(float)));
  }
  deviceStarts_ = static_cast<int64_t*>(arena.take(starts_.size() * sizeof(int64_t)));
}

void DevicePasses::open() {
  if (starts_.empty()) return;
  const CurrentDevice current(exec_.device());
  checkCuda(cudaMemcpy(deviceStarts_, starts_.data(), starts_.size() * sizeof(int64_t), cudaMemcpyHostToDevice),
            "cudaMemcpy");
}

std::string DevicePasses::name() const {
  return "CUDA, " + std::to_string(segments_.count) + " segments a head";
}

LinearProblem DevicePasses::problem(const Inputs& in) const {
  auto problem = kernelProblem(shard_);
  problem.q = inputOf(in.q);
  problem.k = inputOf(in.k);
  problem.v = inputOf(in.v);
  problem.gates = inputOf(in.gate);
  problem.starts = deviceStarts_;
  problem.startCount = static_cast<int64_t>(starts_.size());
  if (in.initial != nullptr) {
    fail(seqparInvalidUsage, kWho, ": args->initial is given for packed sequences, expected NULL: on GPUs each begins",
         " with zeros");
  }
  if (problem.tokens > 0) {
    if (const char* const reason = whyNot(problem)) fail(seqparInvalidArgument, kWho, ": ", reason);
  }
  return problem;
}

void DevicePasses::makeStates(const Inputs& in, bool forRank) {
  SegmentStates pass{problem(in), segments_, allHeads(), before_};
  if (forRank) {
    pass.state = rankState_;
    pass.logDecay = rankDecay_;
  }
  check(launchSegmentStates(pass, {exec_.main(), 0}), "segment states");
}

void DevicePasses::makeOutputs(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  const attn::Outputs pass{problem(in), segments_, allHeads(), before_, incoming, outputOf(out), final};
  check(launchOutputs(pass, {exec_.main(), 0}), "outputs");
}

void DevicePasses::makeStateGradients(const Inputs& in, const Gradients& gradients, bool forRank) {
  SegmentStateGradients pass{problem(in), segments_, allHeads(), inputOf(gradients.dOut), after_};
  if (forRank) {
    pass.stateGradient = rankState_;
    pass.logDecay = rankDecay_;
  }
  check(launchSegmentStateGradients(pass, {exec_.main(), 0}), "segment state gradients");
}

void DevicePasses::makeGradients(const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                                 float* dBefore) {
  attn::Gradients pass;
  pass.problem = problem(in);
  pass.segments = segments_;
  pass.heads = allHeads();
  pass.dOut = inputOf(to.dOut);
  pass.before = before_;
  pass.after = after_;
  pass.initial = saved;
  pass.finalGradient = incoming;
  pass.dq = outputOf(to.dq);
  pass.dk = outputOf(to.dk);
  pass.dv = outputOf(to.dv);
  pass.dGates = outputOf(to.dGate);
  pass.dGateType = pass.problem.gateType;
  pass.dInitial = dBefore;
  pass.workspace = workspace_;
  if (to.dInitial != nullptr) {
    fail(seqparInvalidUsage, kWho, ": args->dInitial is given for packed sequences, expected NULL: on GPUs each begins",
         " with zeros");
  }
  check(launchGradients(pass, {exec_.main(), 0}), "gradients");
}

void DevicePasses::states(const Inputs& in, bool mapWanted) {
  makeStates(in, mapWanted);
}

void DevicePasses::outputs(const Inputs& in, const Tensor& out, const float* incoming) {
  makeOutputs(in, out, incoming, nullptr);
}

void DevicePasses::forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  makeStates(in, false);
  makeOutputs(in, out, incoming, final);
}

void DevicePasses::stateGradients(const Inputs& in, const Gradients& gradients, bool mapWanted) {
  makeStateGradients(in, gradients, mapWanted);
}

void DevicePasses::recompute(const Inputs& in, const float*) {
  makeStates(in, false);
}

void DevicePasses::gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) {
  makeGradients(in, gradients, saved, incoming, nullptr);
}

void DevicePasses::backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved,
                                 const float* incoming, float* dBefore) {
  makeStates(in, false);
  makeStateGradients(in, gradients, false);
  makeGradients(in, gradients, saved, incoming, dBefore);
}

void DevicePasses::copyStates(float* to, const float* from) {
  const auto states = [&](const float* data) {
    return denseTensor(const_cast<float*>(data), seqparFloat32, 1, static_cast<int64_t>(shard_.allHeads()), 1,
                       static_cast<int64_t>(shard_.stateSize()));
  };
  if (from == nullptr) {
    exec_.zero(states(to));
  } else {
    exec_.copy(states(to), states(from));
  }
}

std::unique_ptr<Passes> makeDevicePasses(const Shard& shard, Exec& exec) {
  return std::make_unique<DevicePasses>(shard, exec);
}

}  // namespace seqpar::attn::linear
