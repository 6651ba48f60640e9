// The passes of families with decays on a host: chunk-wise, on all threads of the rank.
#pragma once

#include <atomic>
#include <functional>
#include <initializer_list>
#include <optional>
#include <vector>

#include "attn/exec/host.h"
#include "attn/linear/families/decay/chunk.h"
#include "attn/linear/host/relay.h"
#include "attn/linear/host/segments.h"
#include "attn/linear/passes/passes.h"

namespace seqpar::attn::linear {

class DecayPasses final : public Passes {
 public:
  DecayPasses(const Shard& shard, HostExec& exec);

  void carve(Arena& arena) override;
  void open() override {}
  std::string name() const override;

  StateMap map() const override { return {rankState_, rankDecay_, shard_.family->transition, seqparDecayLinear}; }

  void states(const Inputs& in, MapUse use) override;
  bool worksBesideScan() const override { return exec_.overlaps(); }
  void besideScan(const Inputs& in) override;
  void outputs(const Inputs& in, const Tensor& out, const float* incoming) override;
  void forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) override;
  void stateGradients(const Inputs& in, const Gradients& gradients, MapUse use) override;
  void recompute(const Inputs& in, const float* saved) override;
  void gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) override;
  void backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming,
                     float* dBefore) override;
  OwnScans openScan(seqparComm_t comm) override;
  void forwardWithScan(const Inputs& in, const Tensor& out, const OwnScan& scan) override;
  void copyStates(float* to, const float* from) override;

 private:
  /// States at chunk boundaries, relative to their segments, and the maps of the segments. In reverse: gradients of the
  /// states after the chunks. After fold(), the slot of a segment's first chunk holds the segment's incoming state.
  struct Walk {
    float* slots = nullptr;          ///< [chunks][heads][dk][dv]
    float* decays = nullptr;         ///< [chunks][heads][width]: from the segment's start to the chunk
    float* ends = nullptr;           ///< [segments][heads][dk][dv]: after the segment, with zeros before it
    float* segmentDecays = nullptr;  ///< [segments][heads][width]
  };

  struct HeadRange {
    size_t begin, end;
  };

  Walk carveWalk(Arena& arena) const;
  float* slot(const Walk& walk, size_t chunk, size_t head) const {
    return walk.slots + (chunk * shard_.heads + head) * shard_.stateSize();
  }
  float* decayAt(const Walk& walk, size_t chunk, size_t head) const {
    return walk.decays + (chunk * shard_.heads + head) * shard_.width();
  }
  float* end(const Walk& walk, size_t segment, size_t head) const {
    return walk.ends + (segment * shard_.heads + head) * shard_.stateSize();
  }
  float* segmentDecay(const Walk& walk, size_t segment, size_t head) const {
    return walk.segmentDecays + (segment * shard_.heads + head) * shard_.width();
  }
  /// The states before chunk `n` of the thread's segment, of all heads of a key head.
  float* statesAt(int thread, size_t n) const {
    return states_ + (static_cast<size_t>(thread) * chunks_.longestSegment() + n) * shard_.group() * shard_.stateSize();
  }
  Chunk& place(int thread, size_t chunk);
  Decay decayOf(const Inputs& in) const;
  const Tensor& inputGateOf(const Inputs& in) const;  ///< without data: absent

  /// Lets the products of the thread's current chunk load what its next one reads: its tokens of `tensors`, and its
  /// slots. chunk = chunks_.count(): it has no next one.
  void announce(std::initializer_list<const Tensor*> tensors, std::initializer_list<const Walk*> walks, size_t chunk,
                size_t head) const;
  /// The same for the task of a later turn of the thread, if all threads have equal turns; tasks are chunks by heads.
  void announceTask(std::initializer_list<const Tensor*> tensors, std::initializer_list<const Walk*> walks, size_t task,
                    size_t heads) const;
  /// The same for head `h` of chunk `c`, if the thread computes `heads` of `c` before those of chunk `after`.
  void announce(std::initializer_list<const Tensor*> tensors, HeadRange heads, size_t h, size_t c, size_t after) const {
    const bool last = h + 1 == heads.end;
    announce(tensors, {}, last ? after : c, last ? heads.begin : h + 1);
  }
  const Tensor& decaysPerToken(const Inputs& in) const;  ///< without data: none, or per head

  /// body() for all segments and heads, on all threads. Walks compute all heads of a chunk before the next chunk: rows
  /// of one head share few sets of the caches, so rows that are loaded ahead for the next chunk would replace them.
  void eachSegment(const std::function<void(size_t segment, HeadRange heads, int thread)>& body);
  void walkStates(const Inputs& in);
  void walkGradients(const Inputs& in, const Gradients& gradients);
  /// Runs the states through the segments of every head, from the incoming state `before`; stores the outgoing state in
  /// `after` (may be null). `keep`: stores the states before the segments in their slots.
  void fold(const float* initial, const float* before, bool keep, float* after);
  void foldBack(const float* after, bool keep, float* before, float* dInitial);
  /// state = the map of a segment, applied to it.
  void applyMap(const Walk& walk, size_t segment, size_t head, float* state) const;
  /// The decay over the whole rank, `width` values per head.
  void rankDecays(const Walk& walk);

  void attendWithin(const Inputs& in, Chunk& chunk, size_t head, float* out) const;
  /// The state before chunk number `c`; may be stored in `chunk`.
  const float* stateBefore(Chunk& chunk, size_t c, size_t head) const;
  void chunkOutput(const Inputs& in, const Tensor& out, size_t chunk, size_t head, int thread, const float* within);
  /// to = a segment's incoming state. incoming: before the rank's first token; null: zeros.
  void loadStateBefore(const Inputs& in, size_t segment, size_t head, const float* incoming, float* to) const;
  void segmentOutput(const Inputs& in, const Tensor& out, size_t segment, size_t head, int thread,
                     const float* incoming, float* final);
  /// Whether backwardAlone() computes the states of a segment just before its gradients, so that they are in a cache.
  bool recomputesLate() const { return shard_.alone && !chunks_.split(); }
  /// -> statesAt()
  void recomputeSegment(const Inputs& in, size_t segment, size_t keyHead, int thread, const float* saved);
  /// recomputeSegment(), and the gradients of its chunks. carried: as in chunkGradients().
  void segmentGradients(const Inputs& in, const Gradients& gradients, size_t segment, size_t keyHead, int thread,
                        const float* saved, float* carried);
  /// states: before the chunk, of all heads of the key head; null: from the slots. carried: gradients of the states, in
  /// after and out before the chunk; null: from the slots.
  void chunkGradients(const Inputs& in, const Gradients& gradients, size_t chunk, size_t keyHead, int thread,
                      const float* states, float* carried);
  void addFixedGates(const Gradients& gradients);

  Shard shard_;
  HostExec& exec_;
  Chunks chunks_;

  Walk forward_, backward_;
  float *rankState_ = nullptr, *rankDecay_ = nullptr;
  float* within_ = nullptr;  ///< [withinRoom_][kChunk][dv]
  size_t withinRoom_ = 0;
  std::vector<char> withinDone_;
  std::atomic<bool> scanDone_{false};
  std::optional<Relay> relay_;   ///< after openScan()
  float* states_ = nullptr;      ///< [threads][chunks of the longest segment][group][dk][dv]
  float* carried_ = nullptr;     ///< [threads][group][dk][dv]
  float* fixedGates_ = nullptr;  ///< [chunks][heads]
  std::vector<float*> scratch_;  ///< of each thread
  std::vector<Chunk> threads_;
};

std::unique_ptr<Passes> makeDecayPasses(const Shard& shard, Exec& exec);

}  // namespace seqpar::attn::linear
