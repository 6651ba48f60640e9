#include "attn/linear/device/passes.h"

#include <algorithm>

#include "attn/linear/device/check.h"
#include "device/upload.h"
#include "kernels/attn/linear/pairs.h"

namespace seqpar::attn::linear {
namespace {

/// Throws Error if the device is too old, or the kernels need more shared memory than it has; sm_90 has enough.
void requireDevice(const Shard& shard, const LinearProblem& shape, int device) {
  int major = 0, allowed = 0;
  checkCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  if (major < 8) {
    fail(seqparInvalidUsage, kDeviceWho, ": no kernel for device ", device, ", expected sm_80 or newer");
  }
  checkCuda(cudaDeviceGetAttribute(&allowed, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
            "cudaDeviceGetAttribute");
  const auto require = [&](const char* pass, int needed) {
    if (needed <= allowed) return;
    fail(seqparInvalidUsage, kDeviceWho, ": no ", pass, " kernel for device ", device, " with keys of ", shape.dk,
         " and values of ", shape.dv, ": it needs ", needed, " bytes of shared memory per CTA, the device has ",
         allowed);
  };
  require("forward", forwardSharedBytes(shape));
  if (shard.training) require("backward", backwardSharedBytes(shape));
}

}  // namespace

DevicePasses::DevicePasses(const Shard& shard, Exec& exec) : shard_(shard), exec_(exec) {
  if (const char* const reason = whyNoKernel(shard)) {
    fail(seqparInvalidUsage, kDeviceWho, ": no kernel for this: ", reason);
  }
  const CurrentDevice current(exec.device());
  const LinearProblem shape = withoutTensors(kernelProblem(shard));
  requireDevice(shard, shape, exec.device());
  const int ctas = ctasAtOnce(shape);
  if (ctas == 0) fail(seqparUnhandledCudaError, kDeviceWho, ": the kernels do not run on device ", exec.device());
  paired_ = gradientsArePaired(shape);
  const int ofHeads = paired_ ? ctas * 2 : ctas;  // a CTA has two heads
  whole_ = wholeOf(shard, ofHeads, spans_);
  parts_ = partsOf(shard, ofHeads);
  fusesInputGate_ = shard.inputGate && fusesInputGate(shape);
  whole_.content = fastestMaps(shape, whole_.segments);
  if (shard_.reserves && whole_.content == Maps::PerSegment) idle_ = idleSmsOfGradients(shape, whole_.segments);
  forward_ = whole_;
  if (spans_.empty()) {
    LinearProblem items = shape;  // a pair of heads is one
    if (outputsArePaired(shape)) items.heads /= 2;
    forward_.segments = cutForward(items, ctas, supportsLead(shape));
  }
  forward_.content = fastestMaps(shape, forward_.segments);
  for (auto& part : parts_) part.content = fastestMaps(withoutTensors(part.shape), part.segments);
}

void DevicePasses::carve(Arena& arena) {
  const PartSizes sizes = largestOf(whole_, parts_, paired_);
  if (!shard_.reserves || !parts_.empty()) {
    before_ = arena.take(std::max(sizes.maps, stateMapsSize(forward_.shape, forward_.segments)));
  }
  if (shard_.training) {
    after_ = arena.take(sizes.maps);
    workspace_ = arena.take(sizes.gradients);
    if (!parts_.empty()) headGates_ = static_cast<float*>(arena.take(shard_.heads * sizeof(float)));
  }
  if (multipliesValues()) {
    products_ = arena.take(shard_.batch * shard_.tokens * shard_.heads * shard_.dv * bytesOf(shard_.type));
  }
  if (!shard_.alone) {
    rankState_ = static_cast<float*>(arena.take(shard_.states() * sizeof(float)));
    rankDecay_ = static_cast<float*>(arena.take(shard_.allHeads() * shard_.width() * sizeof(float)));
  }
  if (spans_.empty()) return;
  deviceSpans_ = static_cast<Span*>(arena.take(spans_.size() * sizeof(Span)));
  whole_.segments.spans = forward_.segments.spans = deviceSpans_;
}

void DevicePasses::carveReserve(Arena& arena) {
  kept_ = arena.take(stateMapsSize(whole_.shape, whole_.segments));
}

void DevicePasses::open() {
  if (spans_.empty()) return;
  const CurrentDevice current(exec_.device());
  upload(deviceSpans_, spans_.data(), spans_.size() * sizeof(Span));
}

std::string DevicePasses::name() const {
  return "CUDA, " + std::to_string(whole_.segments.count) + " segments a head";
}

LinearProblem DevicePasses::problem(const Part& part, const Inputs& in) const {
  auto problem = problemOf(part, in);
  if (fusesInputGate_) {
    const Tensor& gate = in.gates[shard_.family->gateCount];
    problem.inputGates = inputOf(gate, part.piece.first);
    problem.inputGateType = gate.type;
  }
  if (const char* const reason = whyNot(problem)) fail(seqparInvalidArgument, kDeviceWho, ": ", reason);
  return problem;
}

template <class Number>
Number* DevicePasses::atBegin(const Part& part, Number* states) const {
  return states == nullptr || !part.piece.begins ? nullptr : states + part.piece.sequence * shard_.states();
}

void DevicePasses::makeStates(const Part& part, const Inputs& in, bool forRank) {
  SegmentStates pass{problem(part, in), part.segments, allHeads(), mapsBefore(part)};
  pass.content = part.content;
  pass.allSegments = forRank && readsMaps(part);
  if (forRank && !pass.allSegments) {
    pass.state = rankState_;
    pass.logDecay = rankDecay_;
    pass.base = atBegin(part, in.initial);
  }
  checkLaunch(launchSegmentStates(pass, onMain()), "segment states");
}

void DevicePasses::makeOutputs(const Part& part, const Inputs& in, const Tensor& out, const float* incoming,
                               float* final) {
  attn::Outputs pass{
      problem(part, in), part.segments, allHeads(), mapsBefore(part), incoming, outputOf(out, part.piece.first), final};
  pass.content = part.content;
  pass.storesMaps = keeps(part);
  checkLaunch(launchOutputs(pass, onMain()), "outputs");
}

void DevicePasses::makeStateGradients(const Part& part, const Inputs& in, const Gradients& gradients, bool forRank) {
  SegmentStateGradients pass{problem(part, in), part.segments, allHeads(), inputOf(gradients.dOut, part.piece.first),
                             mapsOf(part, after_)};
  pass.content = part.content;
  pass.allSegments = forRank && readsMaps(part);
  if (forRank && !pass.allSegments) {
    pass.stateGradient = rankState_;
    pass.logDecay = rankDecay_;
  }
  checkLaunch(launchSegmentStateGradients(pass, onMain()), "segment state gradients");
}

void DevicePasses::makeGradients(const Part& part, const Inputs& in, const Gradients& to, const float* saved,
                                 const float* incoming, float* dBefore) {
  const size_t first = part.piece.first;
  attn::Gradients pass;
  pass.problem = problem(part, in);
  pass.segments = part.segments;
  pass.heads = allHeads();
  pass.dOut = inputOf(to.dOut, first);
  pass.before = mapsBefore(part);
  pass.after = mapsOf(part, after_);
  pass.content = part.content;
  pass.initial = saved;
  pass.finalGradient = incoming;
  pass.dq = outputOf(to.dq, first);
  pass.dk = outputOf(to.dk, first);
  pass.dv = outputOf(to.dv, first);
  pass.dGates = outputOf(to.dGates[0], pass.problem.gate == Gate::Head ? 0 : first);
  pass.dGateType = pass.problem.gateType;
  if (fusesInputGate_) pass.dInputGates = outputOf(to.dGates[shard_.family->gateCount], first);
  pass.dInitial = dBefore;
  pass.workspace = workspace_;
  checkLaunch(launchGradients(pass, onMain()), "gradients");
}

void DevicePasses::makeIdentity() {
  sequence_.end();
  const auto clear = [&](float* numbers, size_t ofHead) {
    exec_.zero(denseTensor(numbers, seqparFloat32, 1, static_cast<int64_t>(shard_.allHeads()), 1,
                           static_cast<int64_t>(ofHead)));
  };
  clear(rankState_, shard_.stateSize());
  clear(rankDecay_, shard_.width());  // logarithms
}

void DevicePasses::states(const Inputs& in, MapUse use) {
  sequence_.end();
  const bool mapWanted = use != MapUse::Nothing;
  if (empty()) {
    if (mapWanted) makeIdentity();
    return;
  }
  multiplyValues(in);
  if (!byParts(in)) return makeStates(whole_, gated(in), mapWanted);
  // outputs() computes the states of the other parts.
  if (mapWanted) makeStates(parts_.back(), gated(in), true);
}

// Called after states(); the scan in between has no kernel that another may overtake.
void DevicePasses::outputs(const Inputs& in, const Tensor& out, const float* incoming) {
  if (empty()) return;
  if (byParts(in)) return outputsByParts(gated(in), out, incoming, nullptr);
  makeOutputs(whole_, gated(in), out, incoming, nullptr);
}

void DevicePasses::forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  if (empty()) {
    if (final != nullptr) copyStates(final, incoming);
    return;
  }
  sequence_.end();
  multiplyValues(in);
  if (byParts(in)) return outputsByParts(gated(in), out, incoming, final);
  const Part& part = shard_.reserves ? whole_ : forward_;
  attn::Outputs pass{
      problem(part, gated(in)), part.segments, allHeads(), mapsBefore(part), incoming, outputOf(out), final};
  pass.content = part.content;
  pass.storesMaps = keeps(part);
  checkLaunch(launchForward(pass, onMain()), "outputs");
}

void DevicePasses::outputsByParts(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  sequence_.end();
  for (const auto& part : parts_) {
    makeStates(part, in, false);
    makeOutputs(part, in, out, part.piece.begins ? atBegin(part, in.initial) : incoming,
                &part == &parts_.back() ? final : nullptr);
  }
}

void DevicePasses::stateGradients(const Inputs& in, const Gradients& gradients, MapUse use) {
  sequence_.end();
  const bool mapWanted = use != MapUse::Nothing;
  if (empty()) {
    if (mapWanted) makeIdentity();
    return;
  }
  if (!byParts(in, gradients)) return makeStateGradients(whole_, gated(in), gradients, mapWanted);
  if (mapWanted) makeStateGradients(parts_.front(), gated(in), gradients, true);
}

void DevicePasses::recompute(const Inputs& in, const float*) {
  sequence_.end();
  if (empty()) return;
  multiplyValues(in);
  if (!byParts(in)) statesAgain(gated(in));
}

void DevicePasses::statesAgain(const Inputs& in) {
  if (!keeps(whole_)) makeStates(whole_, in, false);
}

void DevicePasses::gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) {
  if (empty()) return clearGradients(gradients);
  clearInitialGradients(gradients);
  sequence_.end();
  const Inputs ready = gated(in);
  if (byParts(in, gradients)) {
    gradientsByParts(ready, gradients, saved, incoming);
  } else {
    makeGradients(whole_, ready, gradients, saved, incoming, nullptr);
  }
  finishValues(in, gradients);
}

void DevicePasses::backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved,
                                 const float* incoming, float* dBefore) {
  if (empty()) {
    clearGradients(gradients);
    if (dBefore != nullptr) copyStates(dBefore, incoming);
    return;
  }
  clearInitialGradients(gradients);
  sequence_.end();
  multiplyValues(in);
  const Inputs ready = gated(in);
  if (byParts(in, gradients)) {
    gradientsByParts(ready, gradients, saved, incoming);
  } else {
    statesAgain(ready);
    makeStateGradients(whole_, ready, gradients, false);
    makeGradients(whole_, ready, gradients, saved, incoming, dBefore);
  }
  finishValues(in, gradients);
}

void DevicePasses::clearInitialGradients(const Gradients& to) {
  if (to.dInitial == nullptr) return;
  sequence_.end();
  const auto of = [](size_t size) { return static_cast<int64_t>(size); };
  exec_.zero(
      denseTensor(to.dInitial, seqparFloat32, 1, of(shard_.sequences), of(shard_.heads), of(shard_.stateSize())));
}

void DevicePasses::clearGradients(const Gradients& to) {
  clearInitialGradients(to);
  if (shard_.family->perHead(0) && to.dGates[0].data != nullptr) exec_.zero(to.dGates[0]);
}

void DevicePasses::gradientsByParts(const Inputs& in, const Gradients& to, const float* saved, const float* incoming) {
  const bool ofHeads = shard_.family->perHead(0) && to.dGates[0].data != nullptr;
  auto mine = to;
  if (ofHeads) {
    mine.dGates[0].data = headGates_;
    exec_.zero(to.dGates[0]);
  }
  for (const auto& part : parts_) {
    sequence_.end();
    makeStates(part, in, false);
    makeStateGradients(part, in, to, false);
    makeGradients(part, in, mine, part.piece.begins ? atBegin(part, in.initial) : saved,
                  part.piece.reachesEnd ? incoming : nullptr, atBegin(part, to.dInitial));
    if (ofHeads) exec_.add(to.dGates[0], mine.dGates[0]);
  }
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
