// The passes of the delta rule on a GPU, in windows of chunks whose records share one memory: states are kept only at
// the windows' borders. Compiles without CUDA.
#pragma once

#include <optional>
#include <vector>

#include "attn/linear/passes/passes.h"
#include "kernels/attn/linear/delta/task.h"

namespace seqpar::attn::linear {

/// What runs the steps: a GPU, or the emulator in tests. Functions throw Error.
class DeltaSteps {
 public:
  virtual ~DeltaSteps() = default;
  virtual void run(delta::Step step, const delta::Task& task, void* stream) = 0;
  virtual void transpose(float* to, const float* from, int64_t count, int size, void* stream) = 0;
  virtual void identity(float* to, int64_t count, int size, void* stream) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  /// SMs of a GPU on which steps of a task may overlap record by record (Task::marks); 0: they may not.
  virtual int overlappingSms(const delta::Task&) const { return 0; }
  /// SMs of a GPU on which chains may run as segments (Task::segments); 0: they may not.
  virtual int sms() const { return 0; }
  virtual void fold(const delta::FoldTask& task, void* stream) = 0;
  /// Whether the steps support Task::readsRows for a task.
  virtual bool readsRows(const delta::Task&) const { return false; }
};

/// Whether the kernels for 16-bit tensors support a shard.
bool fitsHalf(const Shard& shard);
/// Why no kernel supports a shard; NULL: one does.
const char* whyNoDeltaKernel(const Shard& shard);

class DeltaWindows final : public Passes {
 public:
  /// `records`: of a window, at least, if the shard has as many chunks of all heads.
  /// `half`: the kernels for 16-bit tensors. `partChunks`: the least chunks of a part of a window.
  DeltaWindows(const Shard& shard, Exec& exec, std::unique_ptr<DeltaSteps> steps, size_t records, bool half,
               int partChunks = 16);

  void carve(Arena& arena) override;
  void carveReserve(Arena& arena) override;
  void open() override;
  std::string name() const override {
    return std::string("CUDA, chunks of 64 tokens in the WY form, ") + (half_ ? "16-bit" : "TF32") + " tensor cores";
  }

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
  void copyStates(float* to, const float* from) override { copy(to, from, shard_.states()); }

 private:
  void copy(float* to, const float* from, size_t count);
  delta::Task taskOf(const Inputs& in) const;
  void addGradients(const Gradients& to, delta::Task& task) const;
  /// Selects a window's chunks.
  void select(delta::Task& task, size_t window) const;
  size_t windows() const { return (chunks_.size() + window_ - 1) / window_; }
  void run(delta::Step step, const delta::Task& task) { steps_->run(step, task, exec_.main()); }
  void forwardFrom(const Inputs& in, const Tensor& out, const float* incoming, float* final);
  /// Selects a window and prepares its records, unless records_ still holds them.
  void prepare(delta::Task& task, size_t window);
  /// The same, and then runs states through the window: in parts (partsOf()), so that a part's chains, which leave SMs
  /// idle, overlap with the preparation of the next one.
  void advance(delta::Task& task, size_t window);
  bool isPrepared(size_t window, bool training) const {
    if (reserves_) return training || window < preparedWindows_;
    return prepared_ && prepared_->window == window && prepared_->training == training;
  }
  void markPrepared(size_t window, bool training) {
    prepared_ = {window, training};
    if (window == preparedWindows_) ++preparedWindows_;
  }
  /// Advance or Retreat through a window, in segments if planSegments() says so. `busy`: SMs that other kernels use.
  void runChains(delta::Step step, const delta::Task& task, int busy = 0);
  /// Clears the marks of a window, with which its next steps overlap.
  void startMarks(delta::Task& task);
  /// A pass without work: prepares the records that the next one reads first.
  void prepareAhead(delta::Task& task);
  /// Start of a call: its tensors differ from those of the records.
  void discardRecords() {
    prepared_.reset();
    preparedWindows_ = 0;
  }
  /// Sets the states before the first window and those after the last one, which it copies if there is no window.
  void startStates(delta::Task& task, float* states, const float* before);
  /// The forward's states before window w, of those that recompute() has stored.
  float* checkpoint(size_t w) const { return checkpoints_ + w * shard_.states(); }
  const float* before(size_t w, const float* saved) const { return w == 0 ? saved : checkpoint(w); }
  /// gradients(), and the gradient of the state before the rank's first token.
  void gradientsTo(float* dBefore, const Inputs& in, const Gradients& to, const float* saved, const float* incoming);
  /// Sets the rank's transition before a pass that multiplies by the chunks'.
  void startTransition(float* to, MapUse use);

  Shard shard_;
  Exec& exec_;
  std::unique_ptr<DeltaSteps> steps_;
  bool half_;
  /// The forward leaves the records of all windows in the caller's memory, and the backward reads them.
  bool reserves_;
  int partChunks_;
  size_t logDecay_, beta_;  ///< indices of gates
  std::vector<delta::Chunk> chunks_;
  size_t window_ = 1;  ///< chunks
  struct Prepared {
    size_t window;
    bool training;
  };
  std::optional<Prepared> prepared_;  ///< the records in records_
  size_t preparedWindows_ = 0;        ///< of the forward, whose records are in reserved_
  delta::Chunk* deviceChunks_ = nullptr;
  char* reserved_ = nullptr;
  float *records_ = nullptr, *running_ = nullptr, *checkpoints_ = nullptr;
  uint32_t* marks_ = nullptr;
  struct SegmentMemory {
    float* middle = nullptr;                         ///< states behind the first segment
    float *states = nullptr, *transition = nullptr;  ///< the second segment's map; then states behind it
  };
  SegmentMemory segments_, reverseSegments_;  ///< of Advance and Retreat, which overlap
  float *rankStates_ = nullptr, *rankTransition_ = nullptr, *transposed_ = nullptr;
};

}  // namespace seqpar::attn::linear
