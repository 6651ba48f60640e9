// The passes on a GPU: their setup. passes.cpp contains the work per call.
#include <algorithm>

#include "attn/linear/device/check.h"
#include "attn/linear/device/passes.h"
#include "device/upload.h"
#include "kernels/attn/linear/forward_with_maps.h"
#include "kernels/attn/linear/from_zero.h"
#include "kernels/attn/linear/gradients_with_maps.h"
#include "kernels/attn/linear/kept_states.h"
#include "kernels/attn/linear/pairs.h"
#include "kernels/attn/linear/save_initial.h"
#include "kernels/attn/linear/scan_maps.h"
#include "kernels/attn/linear/state_scan.h"

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

/// Segments of pass 1 for maps that only other ranks need. With token decays it divides the tokens that decays have not
/// forgotten, probably less than a third of all, into pieces of equal length for all CTAs (launchScanMaps()): `count`
/// is the number of pieces of a head with all of its tokens, two of them partial.
Segments cutForRank(const LinearProblem& shape, const Segments& whole, int ctas) {
  constexpr int64_t kNeeded = 3, kPartial = 2, kMostMaps = 16, kLeastTokens = 256;
  if (shape.gate == Gate::Channel) return whole;
  LinearProblem items = shape;
  if (outputsArePaired(shape)) items.heads = (items.heads + 1) / 2;
  if (shape.gate != Gate::Token) {
    const Segments cut = cutIntoSegments(items, ctas);
    return cut.count <= maxPerSegment(shape) ? cut : whole;
  }
  const int64_t tiles = (shape.dv + valueTile(shape) - 1) / valueTile(shape) * ((shape.dk + 127) / 128);
  const int64_t heads = shape.batch * items.heads * tiles;
  int64_t count = (kNeeded * ctas + heads - 1) / heads + kPartial;
  count = std::clamp<int64_t>(shape.tokens / kLeastTokens, 1, std::min(count, kMostMaps));
  const int64_t chunks = std::max<int64_t>((shape.tokens + kChunkTokens - 1) / kChunkTokens, 1),
                each = (chunks + count - 1) / count;
  return {static_cast<int>((chunks + each - 1) / each), each * kChunkTokens};
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
  joinsHeads_ = gradientsJoinHeads(shape);
  const int ofHeads = gradientsAtOnce(shape, shard.alone);
  whole_ = wholeOf(shard, ofHeads, spans_);
  parts_ = partsOf(shard, ofHeads);
  outputsBytes_ = outputsWorkspaceSize(shape);
  fusesInputGate_ = shard.inputGate && fusesInputGate(shape);
  whole_.content = fastestMaps(shape, whole_.segments);
  readsChunkStates_ = gradientsReadChunkStates(shape, whole_.segments);
  // Such a forward without maps is faster than with them, by more than the backward saves.
  chainsHeads_ =
      shard.alone && spans_.empty() && shape.gate != Gate::Channel && savesInitial(shape) && !forwardFromZero(shape);
  seldomReadsMaps_ = spans_.empty() && gradientsSeldomReadMaps(shape, whole_.segments);
  const bool keeps = (isOneSegment() && readsChunkStates_) || (shard.alone && seldomReadsMaps_);
  if (shard.reservesMuch && keeps) keptStates_ = keptStatesSize(shape);
  const bool keepsMaps = shard_.reserves && !chainsHeads_;
  const bool early = isOneSegment() ? shape.gate != Gate::Channel : keepsMaps && whole_.segments.count > 1;
  if (early && whole_.content == Maps::PerSegment) idle_ = idleSmsOfGradients(shape, whole_.segments);
  if (!shard_.alone && isOneSegment()) {
    ofRank_ = whole_;
    ofRank_->segments = cutForRank(shape, whole_.segments, ctas);
    ofRank_->content = fastestMaps(shape, whole_.segments);
  }
  forward_ = whole_;
  if (spans_.empty()) {
    LinearProblem items = shape;  // two heads of a CTA are one
    if (outputsArePaired(shape)) items.heads = (items.heads + 1) / 2;
    forward_.segments = cutForward(items, ctas, supportsLead(shape));
  }
  forward_.content = fastestMaps(shape, forward_.segments);
  savesIncoming_ = spans_.empty() && !leavesMaps() && savesInitial(shape);
  fromZero_ = isOneSegment() && forwardFromZero(shape);
  const int maps = spans_.empty() && !leavesMaps() && !shard_.alone ? forwardMaps(shape) : 0;
  if (maps > 0) {
    forwardMaps_ = forward_;
    forwardMaps_->segments = {maps, 0};
    forwardMaps_->content = Maps::PerSegment;
  }
  if (!shard_.alone && seldomReadsMaps_) {
    ofGradients_ = whole_;
    ofGradients_->segments = segmentsForScan(shape);
  }
  for (auto& part : parts_) part.content = fastestMaps(withoutTensors(part.shape), part.segments);
}

void DevicePasses::carve(Arena& arena) {
  PartSizes sizes = largestOf(whole_, parts_, joinsHeads_);
  if (keptStates_ > 0) sizes.gradients = gradientsOfKeptSize(whole_.shape, whole_.segments);
  const auto sizeOf = [](const Part& part) { return stateMapsSize(part.shape, part.segments); };
  if (!leavesMaps() || !parts_.empty()) {
    const size_t ofForward = forwardMaps_ ? sizeOf(*forwardMaps_) : 0;
    before_ = arena.take(std::max({sizes.maps, sizeOf(forward_), sizeOf(rankPart()), ofForward}));
  }
  if (shard_.training) {
    const size_t ofGradients = ofGradients_ ? sizeOf(*ofGradients_) : 0;
    after_ = arena.take(std::max({sizes.maps, sizeOf(rankPart()), ofGradients}));
    workspace_ = arena.take(std::max(sizes.gradients, outputsBytes_));  // a call has one of the passes
    if (!parts_.empty()) headGates_ = static_cast<float*>(arena.take(shard_.heads * sizeof(float)));
  }
  outputsWorkspace_ = static_cast<float*>(shard_.training ? workspace_ : arena.take(outputsBytes_));
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
  if (leavesMaps()) kept_ = arena.take(stateMapsSize(whole_.shape, whole_.segments));
  if (keptStates_ > 0) kept_ = arena.take(keptStates_);
}

void DevicePasses::open() {
  if (spans_.empty()) return;
  const CurrentDevice current(exec_.device());
  upload(deviceSpans_, spans_.data(), spans_.size() * sizeof(Span));
}

std::string DevicePasses::name() const {
  return "CUDA, " + std::to_string(whole_.segments.count) + " segments a head";
}

OwnScans DevicePasses::openScan(seqparComm_t comm) {
  const CurrentDevice current(exec_.device());
  const int parts = stateParts(static_cast<int>(shard_.dk), static_cast<int>(shard_.dv));
  checkLaunch(loadStateScan(), "the scan of states");
  windows_ = openWindows(comm, static_cast<int64_t>(shard_.allHeads()) * parts,
                         static_cast<int64_t>(shard_.stateSize()) / parts, shard_.training);
  return {windows_.has_value(), windows_.has_value()};
}

std::unique_ptr<Passes> makeDevicePasses(const Shard& shard, Exec& exec) {
  return std::make_unique<DevicePasses>(shard, exec);
}

}  // namespace seqpar::attn::linear
