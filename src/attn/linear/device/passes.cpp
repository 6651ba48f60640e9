// The passes on a GPU: their launches for a call, without a scan, with seqparAllScan() between them, or around ZECO's
// scan kernel (kernels/attn/linear/state_scan.h). Launches follow each other on the main stream, and launches that
// depend on no other rank start concurrently. setup.cpp contains the work per plan.
#include "attn/linear/device/passes.h"

#include "attn/linear/device/check.h"
#include "attn/linear/passes/beside.h"
#include "kernels/attn/linear/forward_with_maps.h"
#include "kernels/attn/linear/from_zero.h"
#include "kernels/attn/linear/gradients_first.h"
#include "kernels/attn/linear/gradients_with_maps.h"
#include "kernels/attn/linear/kept_states.h"
#include "kernels/attn/linear/save_initial.h"
#include "kernels/attn/linear/scan_maps.h"
#include "kernels/attn/linear/state_scan.h"

namespace seqpar::attn::linear {

/// The part's tokens of the tensors, as the kernels read them.
LinearProblem DevicePasses::problem(const Part& part, const Inputs& in) const {
  const size_t first = part.piece.first;
  LinearProblem problem = part.shape;
  problem.q = inputOf(in.q, first);
  problem.k = inputOf(in.k, first);
  problem.v = inputOf(valuesOf(in), first);
  problem.gates = inputOf(in.gates[0], problem.gate == Gate::Head ? 0 : first);
  if (fusesInputGate_) {
    const Tensor& gate = in.gates[shard_.family->gateCount];
    problem.inputGates = inputOf(gate, first);
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
  auto* const scratch = reinterpret_cast<int*>(rankDecay_);  // the scan reads the segments' decays
  const bool onlyForScan = ofRank_ && pass.allSegments;
  checkLaunch(onlyForScan ? launchScanMaps(pass, scratch, onMain()) : launchSegmentStates(pass, onMain()),
              "segment states");
}

void DevicePasses::makeOutputs(const Part& part, const Inputs& in, const Tensor& out, const float* incoming,
                               float* final) {
  attn::Outputs pass{
      problem(part, in), part.segments, allHeads(), mapsBefore(part), incoming, outputOf(out, part.piece.first), final};
  pass.content = part.content;
  pass.storesMaps = keeps(part);
  pass.workspace = outputsWorkspace_;
  checkLaunch(launchOutputs(pass, onMain()), "outputs");
}

SegmentStateGradients DevicePasses::stateGradientsOf(const Part& part, const Inputs& in, const Gradients& gradients,
                                                     bool forRank) {
  SegmentStateGradients pass{problem(part, in), part.segments, allHeads(), {}, mapsOf(part, after_)};
  pass.dOut = inputOf(gradients.dOut, part.piece.first);
  pass.content = part.content;
  pass.allSegments = forRank && readsMaps(part);
  if (forRank && !pass.allSegments) {
    pass.stateGradient = rankState_;
    pass.logDecay = rankDecay_;
  }
  return pass;
}

void DevicePasses::makeStateGradients(const Part& part, const Inputs& in, const Gradients& gradients, bool forRank) {
  const SegmentStateGradients pass = stateGradientsOf(part, in, gradients, forRank);
  auto* const scratch = reinterpret_cast<int*>(rankDecay_);
  const bool onlyForScan = ofRank_ && pass.allSegments;
  checkLaunch(onlyForScan ? launchScanMaps(pass, scratch, onMain()) : launchSegmentStateGradients(pass, onMain()),
              "segment state gradients");
}

void DevicePasses::makeGradients(const Part& part, const Inputs& in, const Gradients& to, const float* saved,
                                 const float* incoming, float* dBefore, GradientsPart which,
                                 const LaunchOfGradients& launch) {
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
  pass.part = which;
  checkLaunch(launch(pass, onMain()), "gradients");
}

void DevicePasses::makeGradients(const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                                 float* dBefore, GradientsPart which, bool gradientsFirst) {
  makeGradients(whole_, in, to, saved, incoming, dBefore, which,
                [&](const attn::Gradients& pass, const Launch& launch) {
                  if (keptStates_ > 0) return launchGradientsOfKept(pass, kept_, gradientsFirst, launch);
                  if (gradientsFirst) return launchGradientsFirst(pass, launch);
                  return seldomReadsMaps_ ? launchGradientsWithMaps(pass, launch) : launchGradients(pass, launch);
                });
}

void DevicePasses::launchScan(const OwnScan& args, seqparDirection_t direction, const Part& part, const StateMaps& maps,
                              void* stream, int beside) {
  const bool reads = readsMaps(part);
  StateScan scan;
  scan.scan = windows_->of(direction);
  scan.dk = static_cast<int>(shard_.dk);
  scan.dv = static_cast<int>(shard_.dv);
  scan.width = static_cast<int>(shard_.width());
  scan.maps = reads ? maps : StateMaps{rankState_, rankDecay_};
  scan.segments = args.map == MapUse::Nothing ? 0 : reads ? part.segments.count : 1;
  scan.reverse = direction == seqparReverse;
  scan.ignoresIncoming = (args.flags & (SEQPAR_SCAN_RESET_IN | SEQPAR_SCAN_CUT)) != 0;
  scan.resetsIncoming = (args.flags & SEQPAR_SCAN_RESET_IN) != 0;
  scan.initial = args.initial;
  scan.incoming = args.incoming;
  scan.outgoing = args.outgoing;
  scan.overlapsNext = beside > 0;
  const int ctas = scan.overlapsNext ? beside : windows_->ctas();
  LaunchSequence* const sequence = stream == exec_.main() ? &sequence_ : nullptr;
  checkLaunch(launchStateScan(scan, {stream, ctas, sequence}), "the scan of states");
}

void DevicePasses::states(const Inputs& in, MapUse use) {
  sequence_.end();
  const bool mapWanted = use != MapUse::Nothing;
  if (empty()) {
    if (mapWanted) makeIdentity();
    return;
  }
  multiplyValues(in);
  if (!byParts(in)) return mapWanted || !ofRank_ ? makeStates(rankPart(), in, mapWanted) : void();
  // outputs() computes the states of the other parts.
  if (mapWanted) makeStates(parts_.back(), in, true);
}

// Called after states(); the scan in between has no kernel that another may overtake.
void DevicePasses::outputs(const Inputs& in, const Tensor& out, const float* incoming) {
  if (empty()) return;
  if (byParts(in)) return outputsByParts(in, out, incoming, nullptr);
  if (isOneSegment()) return forwardWhole(forward_, in, out, incoming, nullptr);
  makeOutputs(whole_, in, out, incoming, nullptr);
}

void DevicePasses::forwardAndSave(const Inputs& in, const Tensor& out, const float* incoming, float* final,
                                  float* saved) {
  if (!savesIncoming_ || empty() || byParts(in)) return Passes::forwardAndSave(in, out, incoming, final, saved);
  sequence_.end();
  multiplyValues(in);
  forwardWhole(forward_, in, out, incoming, final, saved);
}

void DevicePasses::forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  if (empty()) {
    if (final != nullptr) copyStates(final, incoming);
    return;
  }
  sequence_.end();
  multiplyValues(in);
  if (byParts(in)) return outputsByParts(in, out, incoming, final);
  forwardWhole(leavesMaps() ? whole_ : forward_, in, out, incoming, final);
}

attn::Outputs DevicePasses::wholePass(const Part& part, const Inputs& in, const Tensor& out, const float* incoming,
                                      float* final) {
  attn::Outputs pass{problem(part, in), part.segments, allHeads(), mapsBefore(part), incoming, outputOf(out), final};
  pass.content = part.content;
  pass.storesMaps = keeps(part);
  pass.workspace = outputsWorkspace_;
  return pass;
}

void DevicePasses::forwardWhole(const Part& part, const Inputs& in, const Tensor& out, const float* incoming,
                                float* final, float* saved) {
  const attn::Outputs pass = wholePass(part, in, out, incoming, final);
  const auto launch = [&](const Launch& on) {
    if (keptStates_ > 0) return launchForwardAndKeep(pass, saved, kept_, on);
    return saved == nullptr ? launchForward(pass, on) : launchForwardAndSave(pass, saved, on);
  };
  checkLaunch(launch(onMain()), "outputs");
}

void DevicePasses::outputsByParts(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  sequence_.end();
  for (const auto& part : parts_) {
    makeStates(part, in, false);
    makeOutputs(part, in, out, part.piece.begins ? atBegin(part, in.initial) : incoming,
                &part == &parts_.back() ? final : nullptr);
  }
}

void DevicePasses::forwardWithScan(const Inputs& in, const Tensor& out, const OwnScan& scan) {
  const bool around = startsFromZero(scan) || (forwardMaps_ && !empty());
  if (around && !byParts(in)) return forwardAroundScan(in, out, scan);
  const Part& sender = byParts(in) ? parts_.back() : rankPart();
  states(in, scan.map);
  launchScan(scan, seqparForward, sender, mapsBefore(sender), exec_.main());
  outputs(in, out, isFirst(seqparForward) ? scan.initial : scan.incoming);
}

void DevicePasses::forwardAroundScan(const Inputs& in, const Tensor& out, const OwnScan& scan) {
  sequence_.end();
  multiplyValues(in);
  attn::Outputs pass = wholePass(forward_, in, out, nullptr, nullptr);
  pass.maps = forwardMaps_ && scan.map != MapUse::Nothing ? mapsOf(*forwardMaps_, before_) : StateMaps{};
  checkLaunch(forwardMaps_ ? launchForwardMaps(pass, onMain()) : launchForwardFromZero(pass, onMain()), "outputs");
  launchScan(scan, seqparForward, forwardMaps_ ? *forwardMaps_ : whole_, pass.maps, exec_.main());
  pass.initial = isFirst(seqparForward) ? scan.initial : scan.incoming;
  checkLaunch(forwardMaps_ ? launchForwardAfterMaps(pass, onMain()) : launchAddInitial(pass, onMain()), "outputs");
}

void DevicePasses::stateGradients(const Inputs& in, const Gradients& gradients, MapUse use) {
  sequence_.end();
  const bool mapWanted = use != MapUse::Nothing;
  if (empty()) {
    if (mapWanted) makeIdentity();
    return;
  }
  if (!byParts(in, gradients)) {
    const bool needed = mapWanted || !(ofRank_ || seldomReadsMaps_);
    return needed ? makeStateGradients(rankPart(), in, gradients, mapWanted) : void();
  }
  if (mapWanted) makeStateGradients(parts_.front(), in, gradients, true);
}

void DevicePasses::recompute(const Inputs& in, const float*) {
  sequence_.end();
  if (empty()) return;
  multiplyValues(in);
  if (!byParts(in)) statesAgain(in);
}

void DevicePasses::statesAgain(const Inputs& in) {
  if (!keeps(whole_) && !isOneSegment() && !seldomReadsMaps_) makeStates(whole_, in, false);
}

void DevicePasses::gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) {
  if (empty()) return clearGradients(gradients);
  clearInitialGradients(gradients);
  sequence_.end();
  if (byParts(in, gradients)) {
    gradientsByParts(in, gradients, saved, incoming);
  } else {
    makeGradients(in, gradients, saved, incoming, nullptr);
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
  if (byParts(in, gradients)) {
    gradientsByParts(in, gradients, saved, incoming);
  } else {
    statesAgain(in);
    if (!seldomReadsMaps_) makeStateGradients(whole_, in, gradients, false);
    makeGradients(in, gradients, saved, incoming, dBefore);
  }
  finishValues(in, gradients);
}

void DevicePasses::backwardWithScan(const Inputs& in, const Gradients& gradients, const float* saved,
                                    const OwnScan& scan) {
  const bool parts = byParts(in, gradients);
  if (!parts && sendsChainGradient(scan)) return backwardAndSend(in, gradients, saved, scan);
  const bool mapWanted = scan.map != MapUse::Nothing, waits = !isFirst(seqparReverse);
  const bool withMaps = !parts && ofGradients_ && mapWanted && !empty();  // operands of chunks yield maps
  const Part& sender = parts ? parts_.front() : withMaps ? *ofGradients_ : rankPart();
  const auto launch = [&](void* stream, int ctas = 0) {
    launchScan(scan, seqparReverse, sender, mapsOf(sender, after_), stream, ctas);
  };
  if (withMaps) {
    sequence_.end();
    makeGradients(whole_, in, gradients, saved, nullptr, nullptr, GradientsPart::States,
                  [&](const attn::Gradients& pass, const Launch& on) {
                    return launchGradientsForScan(pass, stateGradientsOf(sender, in, gradients, true), on);
                  });
  } else {
    stateGradients(in, gradients, scan.map);
  }
  // States and operands of chunks do not depend on other ranks. An inner rank's scan starts before them.
  const bool hasEarly = seldomReadsMaps_ || (readsChunkStates_ && keptStates_ == 0 && !mapWanted);
  const bool early = hasEarly && waits && !withMaps && spans_.empty() && !empty();
  const auto statesBefore = [&] {
    statesAgain(in);
    if (early) makeGradients(in, gradients, saved, nullptr, nullptr, GradientsPart::States);
  };
  // An inner rank's scan overlaps with the recomputation: it waits, and other ranks wait for it.
  const bool again = !parts && !empty() && (early || !(keeps(whole_) || isOneSegment() || seldomReadsMaps_)),
             beside = mapWanted && waits && again;
  if (beside) {
    Beside side(exec_);
    launch(exec_.side());
    multiplyValues(in);
    statesBefore();
    side.join();
    sequence_.end();
  } else {
    if (mapWanted) launch(exec_.main());
    if (!empty()) multiplyValues(in);
    if (again) statesBefore();
    if (!mapWanted) launch(exec_.main(), parts ? 0 : besideGradients());
  }
  if (empty()) return clearGradients(gradients);
  clearInitialGradients(gradients);
  const bool packed = shard_.sequences > 0;  // then the scan's flags say whether `initial` is used
  const float* const incoming = isFirst(seqparReverse) && !packed ? scan.initial : scan.incoming;
  if (parts) {
    gradientsByParts(in, gradients, saved, incoming);
  } else {
    makeGradients(in, gradients, saved, incoming, nullptr,
                  early || withMaps ? GradientsPart::AfterStates : GradientsPart::Whole);
  }
  finishValues(in, gradients);
}

void DevicePasses::backwardAndSend(const Inputs& in, const Gradients& gradients, const float* saved,
                                   const OwnScan& scan) {
  sequence_.end();
  multiplyValues(in);
  clearInitialGradients(gradients);
  const auto launch = [&](GradientsPart part) {
    makeGradients(in, gradients, saved, scan.initial, rankState_, part, true);
  };
  launch(GradientsPart::States);
  OwnScan sent = scan;
  sent.flags |= SEQPAR_SCAN_CUT;  // rankState_ includes the contribution of `initial`
  launchScan(sent, seqparReverse, whole_, {}, exec_.main());
  launch(GradientsPart::AfterStates);
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
                  part.piece.reachesEnd ? incoming : nullptr, atBegin(part, to.dInitial), GradientsPart::Whole,
                  launchGradients);
    if (ofHeads) exec_.add(to.dGates[0], mine.dGates[0]);
  }
}

}  // namespace seqpar::attn::linear
