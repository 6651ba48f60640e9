// The passes of linear attention on a GPU: launches of the kernels in kernels/attn/linear.
#pragma once

#include <functional>
#include <optional>

#include "attn/linear/device/parts.h"
#include "attn/linear/device/scan_windows.h"
#include "kernels/attn/linear/gradients_with_maps.h"
#include "kernels/attn/linear/input_gate.h"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn::linear {

class DevicePasses final : public Passes {
 public:
  /// Throws Error.
  DevicePasses(const Shard& shard, Exec& exec);

  void carve(Arena& arena) override;
  void carveReserve(Arena& arena) override;
  void open() override;
  std::string name() const override;

  StateMap map() const override {
    const auto kind = shard_.family->transition;
    return {rankState_, rankDecay_, kind, kind == seqparScanSum ? seqparDecayLinear : seqparDecayLog};
  }

  void check(const char* call, const Inputs& in, const Tensor& out) const override {
    AlignmentCheck(call, whole_.shape).inputs(in, !multipliesValues()).rows("out", out);
  }
  void check(const char* call, const Inputs& in, const Gradients& to) const override {
    AlignmentCheck(call, whole_.shape).inputs(in, !multipliesValues()).gradients(to);
  }
  void states(const Inputs& in, MapUse use) override;
  bool worksBesideScan() const override { return false; }
  void besideScan(const Inputs&) override {}
  void outputs(const Inputs& in, const Tensor& out, const float* incoming) override;
  void forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) override;
  void forwardAndSave(const Inputs& in, const Tensor& out, const float* incoming, float* final, float* saved) override;
  void stateGradients(const Inputs& in, const Gradients& gradients, MapUse use) override;
  void recompute(const Inputs& in, const float* saved) override;
  void gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) override;
  void backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming,
                     float* dBefore) override;
  OwnScans openScan(seqparComm_t comm) override;
  void forwardWithScan(const Inputs& in, const Tensor& out, const OwnScan& scan) override;
  void backwardWithScan(const Inputs& in, const Gradients& gradients, const float* saved, const OwnScan& scan) override;
  void copyStates(float* to, const float* from) override;

 private:
  /// Whether the rank has no tokens: its map is the identity, and only states are copied.
  bool empty() const { return shard_.tokens == 0 || shard_.batch == 0; }
  /// Sets the rank's map to the identity.
  void makeIdentity();
  /// Writes the gradients of an empty rank.
  void clearGradients(const Gradients& gradients);
  /// Whether the launches are by parts: sequences have initial states, or their gradients are requested.
  bool byParts(const Inputs& in) const { return in.initial != nullptr && !parts_.empty(); }
  bool byParts(const Inputs& in, const Gradients& to) const {
    return (in.initial != nullptr || to.dInitial != nullptr) && !parts_.empty();
  }
  /// Whether a single segment has all tokens: the passes after the scan then read no maps.
  bool isOneSegment() const { return whole_.segments.count == 1 && spans_.empty(); }
  /// Whether the forward leaves maps in the caller's memory; otherwise it may leave the states of chunks.
  bool leavesMaps() const { return shard_.reserves && !isOneSegment() && !seldomReadsMaps_ && !chainsHeads_; }
  /// Whether the forward stores the states of a part's segments in the caller's memory.
  bool keeps(const Part& part) const { return leavesMaps() && &part == &whole_; }
  StateMaps mapsBefore(const Part& part) const { return mapsOf(part, keeps(part) ? kept_ : before_); }
  LinearProblem problem(const Part& part, const Inputs& in) const;
  /// The tokens, divided for pass 1 where other ranks need the rank's map.
  const Part& rankPart() const { return ofRank_ ? *ofRank_ : whole_; }
  /// Whether the scan reads the maps of a part's segments instead of the rank's.
  bool readsMaps(const Part& part) const {
    const auto is = [&](const std::optional<Part>& other) { return other && &part == &*other; };
    const bool ofRank = &part == &rankPart() || is(forwardMaps_) || is(ofGradients_);
    return windows_ && part.content == Maps::PerSegment && ofRank;
  }
  /// SMs for a scan that overlaps with the gradients' sweep over the states that the forward has left; 0: the scan runs
  /// before the sweep.
  int besideGradients() const { return windows_->ctas() == 0 ? idle_ : 0; }
  /// `maps`: the part's. `beside`: besideGradients(), if the scan overlaps in this way. The main stream's launches are
  /// a sequence.
  void launchScan(const OwnScan& scan, seqparDirection_t direction, const Part& part, const StateMaps& maps,
                  void* stream, int beside = 0);
  /// Whether this rank provides the scan's incoming state.
  bool isFirst(seqparDirection_t direction) const { return windows_->of(direction).position == 0; }
  HeadRange allHeads() const { return {0, static_cast<int>(shard_.heads)}; }
  StateMaps mapsOf(const Part& part, void* memory) const { return stateMapsIn(memory, part.shape, part.segments); }
  /// `states` of the part's sequence, if the sequence starts with the part; otherwise, or without states, NULL.
  template <class Number>
  Number* atBegin(const Part& part, Number* states) const;

  Launch onMain() { return {exec_.main(), 0, &sequence_}; }
  /// Whether there is an input gate that the kernels of the passes do not apply.
  bool multipliesValues() const { return shard_.inputGate && !fusesInputGate_; }
  /// The input gate of the whole, with the given values; for calls with one.
  InputGate inputGate(const Inputs& in) const;
  /// The values that the kernels read: with multipliesValues(), those times the gate, which multiplyValues() writes.
  Tensor valuesOf(const Inputs& in) const;
  void multiplyValues(const Inputs& in);
  /// Likewise: the gradients of gate and values, after those of the products in to.dv.
  void finishValues(const Inputs& in, const Gradients& to);
  void makeStates(const Part& part, const Inputs& in, bool forRank);
  void makeOutputs(const Part& part, const Inputs& in, const Tensor& out, const float* incoming, float* final);
  void makeStateGradients(const Part& part, const Inputs& in, const Gradients& gradients, bool forRank);
  SegmentStateGradients stateGradientsOf(const Part& part, const Inputs& in, const Gradients& gradients, bool forRank);
  using LaunchOfGradients = std::function<int(const attn::Gradients&, const Launch&)>;
  void makeGradients(const Part& part, const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                     float* dBefore, GradientsPart which, const LaunchOfGradients& launch);
  /// Of the whole.
  void makeGradients(const Inputs& in, const Gradients& to, const float* saved, const float* incoming, float* dBefore,
                     GradientsPart which = GradientsPart::Whole, bool gradientsFirst = false);
  attn::Outputs wholePass(const Part& part, const Inputs& in, const Tensor& out, const float* incoming, float* final);
  /// Whether the forward starts before the incoming state is known, and adds its contribution afterwards: no rank waits
  /// for this one.
  bool startsFromZero(const OwnScan& scan) const {
    return fromZero_ && !isFirst(seqparForward) && scan.map == MapUse::Nothing && !empty();
  }
  /// From zero states, or in two calls with maps.
  void forwardAroundScan(const Inputs& in, const Tensor& out, const OwnScan& scan);
  /// The forward without maps of pass 1, or with its own ones.
  void forwardWhole(const Part& part, const Inputs& in, const Tensor& out, const float* incoming, float* final,
                    float* saved = nullptr);
  /// Both passes of each part.
  void outputsByParts(const Inputs& in, const Tensor& out, const float* incoming, float* final);
  /// Recomputes the forward's states of the whole, unless they were kept.
  void statesAgain(const Inputs& in);
  /// Whether the rank knows the gradient of its last state, and its chain of gradients of chunks' states, before all
  /// other launches, computes the state that another rank needs: without pass 1.
  bool sendsChainGradient(const OwnScan& scan) const {
    return readsChunkStates_ && isOneSegment() && isFirst(seqparReverse) && scan.map != MapUse::Nothing && !empty();
  }
  void backwardAndSend(const Inputs& in, const Gradients& gradients, const float* saved, const OwnScan& scan);
  /// Gradients for sequences that start on other ranks stay 0.
  void clearInitialGradients(const Gradients& to);
  void gradientsByParts(const Inputs& in, const Gradients& to, const float* saved, const float* incoming);

  Shard shard_;
  Exec& exec_;
  Part whole_;
  bool joinsHeads_ = false;          ///< gradientsJoinHeads()
  bool readsChunkStates_ = false;    ///< gradientsReadChunkStates() of the whole
  size_t keptStates_ = 0;            ///< keptStatesSize(), if the forward leaves the states of chunks; kept_ has them
  bool seldomReadsMaps_ = false;     ///< gradientsSeldomReadMaps() of the whole
  bool chainsHeads_ = false;         ///< the forward computes whole heads in chains, without maps
  Part forward_;                     // the whole, divided for launchForward()
  bool savesIncoming_ = false;       ///< savesInitial() of forward_
  bool fromZero_ = false;            ///< forwardFromZero() of forward_
  std::optional<Part> forwardMaps_;  ///< forward_, divided as forwardMaps(), if ZECO's forward is in two calls
  std::optional<Part> ofRank_;       ///< the whole, divided for maps that only other ranks need, if it is one segment
  std::optional<Part> ofGradients_;  ///< segmentsForScan(), if gradientsSeldomReadMaps() and other ranks need maps
  bool fusesInputGate_ = false;      // the passes' kernels apply it
  int idle_ = 0;                     // SMs that the gradients' sweep leaves idle, if it does not wait for pass 1
  std::vector<Part> parts_;
  void *before_ = nullptr, *after_ = nullptr;  // maps of segments
  void* kept_ = nullptr;                       // maps before the segments of the whole, replaces before_
  float *rankState_ = nullptr, *rankDecay_ = nullptr;
  float* headGates_ = nullptr;  // gradients of one part
  void* workspace_ = nullptr;
  size_t outputsBytes_ = 0;
  float* outputsWorkspace_ = nullptr;
  void* products_ = nullptr;            // values times the input gate, dense
  LaunchSequence sequence_;             // of the call on the main stream, since the last work of others on it
  std::optional<ScanWindows> windows_;  // set by a successful openScan()
  std::vector<Span> spans_;             // of packed sequences
  Span* deviceSpans_ = nullptr;
};

}  // namespace seqpar::attn::linear
