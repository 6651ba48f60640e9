// The passes of linear attention on a GPU: launches of the kernels in kernels/attn/linear.
#pragma once

#include <optional>

#include "attn/linear/device/parts.h"
#include "attn/linear/device/scan_windows.h"

namespace seqpar::attn::linear {

class DevicePasses final : public Passes {
 public:
  /// Throws Error.
  DevicePasses(const Shard& shard, Exec& exec);

  void carve(Arena& arena) override;
  void carveReserve(Arena& arena) override;
  void open() override;
  std::string name() const override;

  float* state() const override { return rankState_; }
  float* decay() const override { return rankDecay_; }
  seqparDecayForm_t decayForm() const override { return seqparDecayLog; }

  void states(const Inputs& in, bool mapWanted) override;
  bool worksBesideScan() const override { return false; }
  void besideScan(const Inputs&) override {}
  void outputs(const Inputs& in, const Tensor& out, const float* incoming) override;
  void forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) override;
  void stateGradients(const Inputs& in, const Gradients& gradients, bool mapWanted) override;
  void recompute(const Inputs& in, const float* saved) override;
  void gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) override;
  void backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming,
                     float* dBefore) override;
  bool openScan(seqparComm_t comm) override;
  void forwardWithScan(const Inputs& in, const Tensor& out, const OwnScan& scan) override;
  void backwardWithScan(const Inputs& in, const Gradients& gradients, const float* saved, const OwnScan& scan) override;
  void copyStates(float* to, const float* from) override;

 private:
  /// Whether the launches are by parts: sequences begin with states of their own, or their gradients are wanted.
  bool byParts(const Inputs& in) const { return in.initial != nullptr && !parts_.empty(); }
  bool byParts(const Inputs& in, const Gradients& to) const {
    return (in.initial != nullptr || to.dInitial != nullptr) && !parts_.empty();
  }
  /// Whether the forward leaves the states of a part's segments in the caller's memory.
  bool keeps(const Part& part) const { return shard_.reserves && &part == &whole_; }
  SegmentMaps mapsBefore(const Part& part) const { return mapsOf(part, keeps(part) ? kept_ : before_); }
  LinearProblem problem(const Part& part, const Inputs& in) const;
  /// Whether the scan reads the maps of a part's segments, and not the rank's.
  bool readsMaps(const Part& part) const { return windows_ && part.apart && &part == &whole_; }
  /// SMs for a scan that waits beside the gradients' sweep over the states that the forward has left; 0: it comes
  /// before them.
  int besideGradients() const { return windows_->ctas() == 0 ? idle_ : 0; }
  /// `maps`: of the part. `beside`: what besideGradients() says, if this is such a scan.
  void launchScan(const OwnScan& scan, seqparDirection_t direction, const Part& part, const SegmentMaps& maps,
                  void* stream, int beside = 0);
  /// Whether what comes into the scan is this rank's own.
  bool isFirst(seqparDirection_t direction) const { return windows_->of(direction).position == 0; }
  HeadRange allHeads() const { return {0, static_cast<int>(shard_.heads)}; }
  SegmentMaps mapsOf(const Part& part, void* memory) const { return segmentMapsIn(memory, part.shape, part.segments); }
  /// `states` of the sequence that begins with the part; NULL: there are none, or it began before.
  template <class Number>
  Number* atBegin(const Part& part, Number* states) const;

  /// `afterGradients`: as SegmentStates has it.
  void makeStates(const Part& part, const Inputs& in, bool forRank, bool afterGradients = false);
  /// `mapsAreThere`: as attn::Outputs has it.
  void makeOutputs(const Part& part, const Inputs& in, const Tensor& out, const float* incoming, float* final,
                   bool mapsAreThere = false);
  /// `afterStates`: right after makeStates().
  void makeStateGradients(const Part& part, const Inputs& in, const Gradients& gradients, bool forRank,
                          bool afterStates);
  void makeGradients(const Part& part, const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                     float* dBefore, bool early);
  /// Both passes of each part.
  void outputsByParts(const Inputs& in, const Tensor& out, const float* incoming, float* final);
  /// The forward's states of the whole again, unless it has left them.
  void statesAgain(const Inputs& in, bool afterGradients = false);
  /// Those of sequences that begin on other ranks stay 0.
  void clearInitialGradients(const Gradients& to);
  void gradientsByParts(const Inputs& in, const Gradients& to, const float* saved, const float* incoming);

  Shard shard_;
  Exec& exec_;
  Part whole_;
  Part forward_;  // the whole, cut for launchForward()
  int idle_ = 0;  // SMs that its gradients leave, where forward leaves its states
  std::vector<Part> parts_;
  void *before_ = nullptr, *after_ = nullptr;  // maps of segments
  void* kept_ = nullptr;                       // maps before the segments of the whole, in place of before_
  float *rankState_ = nullptr, *rankDecay_ = nullptr;
  float* headGates_ = nullptr;  // gradients of one part
  void* workspace_ = nullptr;
  std::optional<ScanWindows> windows_;  // once openScan() was successful
  std::vector<int64_t> starts_;
  int64_t* deviceStarts_ = nullptr;
};

}  // namespace seqpar::attn::linear
