// The forward and the backward around ZECO's scan kernel (kernels/attn/linear/state_scan.h). Launches follow each other
// on the main stream, and launches that depend on no other rank start concurrently.
#include "attn/linear/device/check.h"
#include "attn/linear/device/passes.h"
#include "attn/linear/passes/beside.h"
#include "kernels/attn/linear/state_scan.h"

namespace seqpar::attn::linear {

bool DevicePasses::openScan(seqparComm_t comm) {
  const CurrentDevice current(exec_.device());
  const int parts = stateParts(static_cast<int>(shard_.dk), static_cast<int>(shard_.dv));
  checkLaunch(loadStateScan(), "the scan of states");
  windows_ = openWindows(comm, static_cast<int64_t>(shard_.allHeads()) * parts,
                         static_cast<int64_t>(shard_.stateSize()) / parts, shard_.training);
  return windows_.has_value();
}

void DevicePasses::forwardWithScan(const Inputs& in, const Tensor& out, const OwnScan& scan) {
  const bool parts = byParts(in);
  const Part& sender = parts ? parts_.back() : whole_;
  states(in, scan.map);
  launchScan(scan, seqparForward, sender, mapsBefore(sender), exec_.main());
  const float* const incoming = isFirst(seqparForward) ? scan.initial : scan.incoming;
  if (empty()) return;
  if (parts) return outputsByParts(gated(in), out, incoming, nullptr);
  makeOutputs(whole_, gated(in), out, incoming, nullptr);
}

void DevicePasses::backwardWithScan(const Inputs& in, const Gradients& gradients, const float* saved,
                                    const OwnScan& scan) {
  const bool parts = byParts(in, gradients);
  const Part& sender = parts ? parts_.front() : whole_;
  const auto launch = [&](void* stream, int ctas = 0) {
    launchScan(scan, seqparReverse, sender, mapsOf(sender, after_), stream, ctas);
  };
  const bool mapWanted = scan.map != MapUse::Nothing;
  stateGradients(in, gradients, scan.map);
  // An inner rank's scan overlaps with the recomputation: other ranks wait for its output, and it waits for its
  // input.
  const Inputs ready = gated(in);
  const bool again = !parts && !keeps(whole_) && !empty(), beside = mapWanted && !isFirst(seqparReverse) && again;
  if (beside) {
    Beside side(exec_);
    launch(exec_.side());
    multiplyValues(in);
    statesAgain(ready);
    side.join();
    sequence_.end();
  } else {
    if (mapWanted) launch(exec_.main());
    if (!empty()) multiplyValues(in);
    if (again) statesAgain(ready);
    if (!mapWanted) launch(exec_.main(), parts ? 0 : besideGradients());
  }
  if (empty()) return clearGradients(gradients);
  clearInitialGradients(gradients);
  const bool packed = shard_.sequences > 0;  // then the scan's flags say whether `initial` is used
  const float* const incoming = isFirst(seqparReverse) && !packed ? scan.initial : scan.incoming;
  if (parts) {
    gradientsByParts(ready, gradients, saved, incoming);
  } else {
    makeGradients(whole_, ready, gradients, saved, incoming, nullptr);
  }
  finishValues(in, gradients);
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

}  // namespace seqpar::attn::linear
