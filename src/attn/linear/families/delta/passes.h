// The passes of the delta rule on a host: chunk-wise, on all threads of the rank. A state has dv columns, or dv + dk
// while a map is computed (chunk.h).
#pragma once

#include <optional>
#include <vector>

#include "attn/exec/host.h"
#include "attn/linear/families/delta/chunk.h"
#include "attn/linear/host/relay.h"
#include "attn/linear/passes/passes.h"

namespace seqpar::attn::linear {

class DeltaPasses final : public Passes {
 public:
  DeltaPasses(const Shard& shard, HostExec& exec);

  void carve(Arena& arena) override;
  void open() override {}
  std::string name() const override;

  StateMap map() const override { return {rankStates_, rankTransition_, seqparScanMatrix, seqparDecayLinear}; }

  void states(const Inputs& in, MapUse use) override;
  bool worksBesideScan() const override { return false; }
  void besideScan(const Inputs&) override {}
  void outputs(const Inputs& in, const Tensor& out, const float* incoming) override;
  void forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) override;
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
  /// Of a thread.
  struct Scratch {
    DeltaChunk chunk;
    float* state = nullptr;       ///< [group][dk][dv]
    float* wide = nullptr;        ///< [dk][dv + dk]
    float* transition = nullptr;  ///< [dk][dk]
  };

  size_t wideSize() const { return shard_.dk * (shard_.dv + shard_.dk); }
  /// The map of a segment of one head: rows [B | A], in reverse [E | A^T].
  float* mapOf(float* maps, size_t segment, size_t head) const {
    return maps + (segment * shard_.heads + head) * wideSize();
  }
  float* borderOf(size_t segment, size_t head) const {
    return borders_ + (segment * shard_.heads + head) * shard_.stateSize();
  }
  float* stateBefore(size_t chunk, size_t head) const {
    return states_ + (chunk * shard_.heads + head) * shard_.stateSize();
  }
  Scratch& scratchOf(int thread) { return threads_[static_cast<size_t>(thread)]; }
  void placeAt(DeltaChunk& chunk, size_t number) const;
  void loadGates(const Inputs& in, DeltaChunk& chunk, size_t head) const;
  /// Keys, values, gates and the scores of keys.
  void loadKeySide(const Inputs& in, DeltaChunk& chunk, size_t head) const;
  /// state = [0 | I].
  void setIdentity(float* state) const;

  /// Runs `state`, of `columns` columns, through a segment; in reverse, gradients of states.
  void runStates(const Inputs& in, size_t segment, size_t head, Scratch& scratch, float* state, size_t columns) const;
  void runGradients(const Inputs& in, const Tensor& dOut, size_t segment, size_t head, Scratch& scratch, float* x,
                    size_t columns) const;
  /// The maps of all segments.
  void mapSegments(const Inputs& in);
  void mapSegmentsBack(const Inputs& in, const Tensor& dOut);
  /// Runs the states of every head through the maps of its segments, from `before` (null: 0); stores the state before
  /// each segment in borders_ if `keep`, and the last in `after`, which may be null.
  void fold(const float* initial, const float* before, bool keep, float* after);
  void foldBack(const float* after, bool keep, float* before);
  /// state = A state + B for a segment's map.
  void applyMap(const float* map, float* state, Scratch& scratch) const;
  /// The product of the segments' matrices, in the order of the fold; 0 unless the whole map is used.
  void composeTransitions(MapUse use, bool reverse);

  /// The state before a segment; null: 0.
  const float* before(const Inputs& in, size_t segment, size_t head, const float* incoming) const;
  void copyBefore(const Inputs& in, size_t segment, size_t head, const float* incoming, float* to) const;
  void allOutputs(const Inputs& in, const Tensor& out, const float* incoming, float* final);
  void allGradients(const Inputs& in, const Gradients& to, const float* incoming, float* dBefore);
  void segmentOutput(const Inputs& in, const Tensor& out, size_t segment, size_t head, int thread,
                     const float* incoming, float* final);
  /// Only `final` of segmentOutput(), with equal bits, for the last segment of an entry.
  void segmentState(const Inputs& in, size_t segment, size_t head, int thread, const float* incoming, float* final);
  void recomputeSegment(const Inputs& in, size_t segment, size_t head, int thread, const float* saved);
  /// The gradients of the states after a segment, of the heads of a key head.
  void copyBehind(size_t segment, size_t keyHead, const float* incoming, float* to) const;
  void segmentGradients(const Inputs& in, const Gradients& to, size_t segment, size_t keyHead, int thread,
                        const float* incoming, float* dBefore);
  /// The gradients of a chunk for all heads of a key head; scratch.state: gradients of their states, in after and out
  /// before the chunk.
  void chunkGradients(const Inputs& in, const Gradients& to, size_t chunk, size_t keyHead, Scratch& scratch) const;

  Shard shard_;
  HostExec& exec_;
  Chunks chunks_;
  size_t logDecay_, beta_;  ///< indices of gates
  float *rankStates_ = nullptr, *rankTransition_ = nullptr;
  float *maps_ = nullptr, *mapsBack_ = nullptr;  ///< [segments][heads][dk][dv + dk]
  float* borders_ = nullptr;    ///< [segments][heads][dk][dv]: states before segments, or gradients of those after
  float* states_ = nullptr;     ///< [chunks][heads][dk][dv]: before the chunks, from recompute()
  std::optional<Relay> relay_;  ///< after openScan()
  std::vector<float*> memory_;
  std::vector<Scratch> threads_;
};

std::unique_ptr<Passes> makeDeltaPasses(const Shard& shard, Exec& exec);

}  // namespace seqpar::attn::linear
