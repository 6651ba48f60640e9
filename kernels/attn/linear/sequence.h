// The launches of a call on one stream, as data: a launch records the memory that its kernel accesses, and the sequence
// derives whether programmatic dependent launch may start the kernel before its predecessor ends, and which memory the
// kernel may access before griddepcontrol.wait. Compiles everywhere.
//
// All kernels of a sequence execute griddepcontrol.wait before they exit, so waiting for one launch waits for all
// earlier ones. Work on the stream that is not recorded needs end().
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "kernels/attn/linear/args.h"
#include "kernels/attn/linear/fold.h"
#include "kernels/attn/linear/state_scan.h"

namespace seqpar::attn {

/// When a kernel executes griddepcontrol.launch_dependents, which lets the next kernel start.
enum class Trigger {
  AtEnd,      ///< not at all: the next kernel starts as CTAs end
  AfterWait,  ///< after griddepcontrol.wait and a fence: results of earlier launches are visible to the next kernel
  AtStart     ///< before griddepcontrol.wait: earlier launches may still run when the next kernel starts
};

/// Addresses of buffers. NULL is no buffer; two addresses are the same buffer or do not overlap.
class Buffers {
 public:
  Buffers() = default;
  Buffers(std::initializer_list<const void*> all) { add(all); }
  void add(std::initializer_list<const void*> more) {
    std::copy_if(more.begin(), more.end(), std::back_inserter(all_), [](const void* one) { return one != nullptr; });
  }
  bool contains(const void* buffer) const { return std::find(all_.begin(), all_.end(), buffer) != all_.end(); }
  bool meets(const Buffers& other) const {
    return std::any_of(all_.begin(), all_.end(), [&](const void* one) { return other.contains(one); });
  }

 private:
  std::vector<const void*> all_;
};

/// Memory of the call that a kernel accesses, except its inputs (q, k, v, gates and their like), which no launch of the
/// call writes.
struct LaunchRecord {
  Buffers earlyReads, earlyWrites;  ///< before griddepcontrol.wait
  Buffers reads, writes;            ///< after it
  bool readsInputsEarly = false;    ///< reads inputs before griddepcontrol.wait
  bool overlaps = true;             ///< the kernel may start early, and is faster then
  Trigger trigger = Trigger::AtEnd;
};

class LaunchSequence {
 public:
  /// The sequence after one launch.
  static LaunchSequence after(const LaunchRecord& record) {
    LaunchSequence sequence;
    sequence.add(record);
    return sequence;
  }
  /// Records the next launch. Returns whether its kernel may start before the previous one ends.
  bool add(const LaunchRecord& record);
  /// Whether all writes of the recorded launches to `buffer` are visible when the next kernel starts, even early.
  /// False if nothing is recorded.
  bool isComplete(const void* buffer) const;
  /// Forgets all launches. The next kernel that accesses anything but the call's memory early starts after all work
  /// on the stream.
  void end() { *this = {}; }

 private:
  /// Launches that may still run, or of which results may not be visible, when the next kernel starts.
  std::vector<LaunchRecord> running_;
  bool inputsComplete_ = false;
};

/// The records of the kernels that have work before griddepcontrol.wait. `pass`: of a launch on sm_90.
LaunchRecord recordOf(const SegmentStates& pass);
LaunchRecord recordOf(const Outputs& pass);  ///< Outputs::mapsVisible is set
LaunchRecord recordOf(const Gradients& pass, Visible before);
LaunchRecord recordOf(const Fold& fold);
LaunchRecord recordOf(const StateScan& scan);
LaunchRecord waitingRecord(const Outputs& pass);  ///< of the kernels that wait before all accesses
/// A kernel without programmatic launch that writes `maps`.
LaunchRecord ordinaryRecord(const StateMaps& maps);

/// Outputs::mapsVisible of a launch after `sequence`; NULL: no sequence.
Visible mapsVisible(const Outputs& pass, const LaunchSequence* sequence);
/// Task::beforeVisible likewise.
Visible beforeVisible(const Gradients& pass, const LaunchSequence* sequence);

/// Adds to launch.sequence. Without one, `record` is the first launch of its own.
bool startsEarly(const LaunchRecord& record, const Launch& launch);

}  // namespace seqpar::attn
