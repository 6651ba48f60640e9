#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn {

bool LaunchSequence::add(const LaunchRecord& record) {
  const bool early = record.overlaps && (inputsComplete_ || !record.readsInputsEarly) &&
                     std::none_of(running_.begin(), running_.end(), [&](const LaunchRecord& other) {
                       return record.earlyReads.meets(other.earlyWrites) || record.earlyReads.meets(other.writes) ||
                              record.earlyWrites.meets(other.earlyReads) || record.earlyWrites.meets(other.reads) ||
                              record.earlyWrites.meets(other.earlyWrites) || record.earlyWrites.meets(other.writes);
                     });
  // A kernel that starts normally starts after all earlier ones. A kernel that triggers at its end has waited for them,
  // but without a fence.
  if (!early || record.trigger == Trigger::AfterWait) {
    running_.clear();
    inputsComplete_ = true;
  }
  running_.push_back(record);
  return early;
}

bool LaunchSequence::isComplete(const void* buffer) const {
  return !running_.empty() && std::none_of(running_.begin(), running_.end(), [&](const LaunchRecord& other) {
    return other.earlyWrites.contains(buffer) || other.writes.contains(buffer);
  });
}

LaunchRecord recordOf(const SegmentStates& pass) {
  LaunchRecord record;
  record.earlyWrites = {pass.maps.states, pass.maps.transitions};
  record.readsInputsEarly = true;
  record.trigger = Trigger::AtStart;
  return record;
}

LaunchRecord recordOf(const Outputs& pass) {
  LaunchRecord record;
  const int64_t size = pass.problem.type == seqparFloat32 ? 4 : 2;
  const auto* const out = static_cast<const char*>(pass.out.data) + pass.segments.begin * pass.out.token * size;
  record.earlyWrites = {out, pass.finalState, pass.workspace};
  (pass.mapsVisible == Visible::AtStart ? record.earlyReads : record.reads) = {pass.maps.states, pass.maps.transitions,
                                                                               pass.initial};
  const bool lead = pass.tokens == Tokens::Lead;
  if (lead) record.reads = {};  // `initial` is an input
  record.readsInputsEarly = true;
  // The CTAs of a single segment all start with the incoming state.
  record.overlaps = pass.segments.count > 1 || lead;
  record.trigger = lead ? Trigger::AtStart : Trigger::AtEnd;
  return record;
}

LaunchRecord waitingRecord(const Outputs& pass) {
  LaunchRecord record;
  record.reads = {pass.maps.states, pass.maps.transitions, pass.initial};
  record.writes = {pass.out.data, pass.finalState};
  return record;
}

LaunchRecord recordOf(const Gradients& pass, Visible before) {
  LaunchRecord record;
  (before == Visible::AtStart ? record.earlyReads : record.reads) = {pass.before.states, pass.before.transitions};
  record.earlyWrites = {pass.workspace};
  record.reads.add({pass.after.states, pass.after.transitions, pass.finalGradient});
  record.writes = {pass.dq.data, pass.dk.data, pass.dv.data, pass.dGates.data, pass.dInitial};
  record.readsInputsEarly = true;
  const bool one = pass.segments.spans == nullptr && pass.problem.gate != Gate::Channel;
  record.overlaps = pass.content == Maps::PerSegment && (pass.segments.count > 1 || one);
  return record;
}

LaunchRecord recordOf(const Fold& fold) {
  LaunchRecord record;
  record.reads = {fold.maps.states, fold.maps.transitions, fold.base};
  record.writes = {fold.state, fold.logDecay};
  if (fold.leaves == Maps::Prefix) record.writes.add({fold.maps.states});
  record.trigger = Trigger::AtStart;
  return record;
}

LaunchRecord recordOf(const StateScan& scan) {
  LaunchRecord record;
  const bool first = scan.scan.position == 0;
  if (first || scan.segments > 0) {
    record.reads = {scan.maps.states, scan.maps.transitions};
    record.writes = {scan.incoming, scan.outgoing};
  }
  if (first || scan.segments == 0) record.earlyWrites = {scan.incoming};
  // The next kernel reads inputs while an overlapping scan waits.
  record.readsInputsEarly = scan.overlapsNext || (first && scan.initial != nullptr && !scan.resetsIncoming);
  record.trigger = first ? Trigger::AfterWait : scan.segments > 0 ? Trigger::AtEnd : Trigger::AtStart;
  return record;
}

LaunchRecord ordinaryRecord(const StateMaps& maps) {
  LaunchRecord record;
  record.writes = {maps.states, maps.transitions};
  record.overlaps = false;
  return record;
}

Visible mapsVisible(const Outputs& pass, const LaunchSequence* sequence) {
  const bool complete =
      sequence != nullptr && sequence->isComplete(pass.maps.states) && sequence->isComplete(pass.initial);
  return complete ? Visible::AtStart : Visible::AfterWait;
}

Visible beforeVisible(const Gradients& pass, const LaunchSequence* sequence) {
  const bool complete = sequence != nullptr && sequence->isComplete(pass.before.states);
  return complete ? Visible::AtStart : Visible::AfterWait;
}

bool startsEarly(const LaunchRecord& record, const Launch& launch) {
  LaunchSequence alone;
  return (launch.sequence != nullptr ? *launch.sequence : alone).add(record);
}

}  // namespace seqpar::attn
