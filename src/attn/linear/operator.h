// What the algorithms of distributed linear attention have in common: the rank's passes, and the All-Scan between them.
#pragma once

#include <memory>
#include <vector>

#include "attn/linear/passes/passes.h"
#include "attn/problem/algorithm.h"

namespace seqpar::attn::linear {

class LinearOperator : public Operator {
 public:
  void carve(Arena& arena) override;
  void carveReserve(Arena& arena) override { passes_->carveReserve(arena); }
  void open() override { passes_->open(); }
  std::string blockName() const override { return passes_->name(); }

  void forward(const seqparAttnForwardArgs_t& args) override;
  void backward(const seqparAttnBackwardArgs_t& args) override;

 protected:
  /// `local`: no exchange, whatever the number of ranks.
  LinearOperator(const Problem& problem, Exec& exec, bool local);

  /// The passes, ordered around the scan. Not called where no scan takes place: on one rank, and in LOCAL.
  virtual void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) = 0;
  virtual void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) = 0;

  /// The forward with the scan beside work that needs no state from outside, where there is such, and then the first
  /// rank's scan beside its outputs, as it knows the state that comes in.
  void forwardBeside(seqparScanAlgorithm_t algorithm, const Inputs& in, const seqparAttnForwardArgs_t& args);
  /// The backward with the scan beside the forward's states, computed again; the last rank's also beside its gradients,
  /// unless sequences are packed.
  void backwardBeside(seqparScanAlgorithm_t algorithm, const Inputs& in, const Gradients& gradients,
                      const seqparAttnBackwardArgs_t& args);
  /// Collective: has the passes do scans, where they can. For scans of no named algorithm.
  void openOwnScan();
  bool ownScan() const { return ownScan_; }
  /// The forward, and the backward, with scans by the passes.
  void forwardOwn(const Inputs& in, const seqparAttnForwardArgs_t& args);
  void backwardOwn(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args);
  /// The All-Scan of the map that the passes have left: the states that come in, and the one that goes out where it is
  /// wanted.
  void scanForward(seqparScanAlgorithm_t algorithm, const seqparAttnForwardArgs_t& args, void* stream);
  void scanBackward(seqparScanAlgorithm_t algorithm, const seqparAttnBackwardArgs_t& args, void* stream);

  Tensor out(const seqparAttnForwardArgs_t& args) const { return outTensor(problem_, args.out); }
  /// The state before the rank's first token, once scanForward() is done.
  float* incoming(const seqparAttnForwardArgs_t& args) const { return args.saved != nullptr ? args.saved : incoming_; }
  const float* behind() const { return behind_; }  ///< gradient of the state after the last token, after scanBackward()

  const Problem problem_;
  Exec& exec_;
  std::unique_ptr<Passes> passes_;

 private:
  /// Whether a rank's map is part of what another rank, or the caller, gets.
  bool mapWanted(const seqparAttnForwardArgs_t& args) const {
    return problem_.rank() < problem_.ranks() - 1 || args.final != nullptr;
  }
  bool mapWanted(const seqparAttnBackwardArgs_t& args) const {
    return problem_.rank() > 0 || (args.dInitial != nullptr && !problem_.packed());
  }
  /// The state before the first rank's first token, the gradient of the one after the last rank's last; NULL: zeros.
  const float* firstState(const seqparAttnForwardArgs_t& args) const {
    return problem_.rank() == 0 && !problem_.packed() ? args.initial : nullptr;
  }
  const float* lastGradient(const seqparAttnBackwardArgs_t& args) const {
    return problem_.rank() == problem_.ranks() - 1 ? args.dFinal : nullptr;
  }
  /// What wants the gradient of the state before the first rank's first token; NULL: nothing does.
  float* firstGradient(const seqparAttnBackwardArgs_t& args) const {
    return problem_.rank() == 0 && !problem_.packed() ? args.dInitial : nullptr;
  }
  /// Throws Error if the communicator has failed.
  void requireHealthy() const;
  Inputs inputs(const seqparAttnTensor_t& q, const seqparAttnTensor_t& k, const seqparAttnTensor_t& v,
                const seqparAttnTensor_t& gate, const float* initial) const;
  void scan(seqparDirection_t direction, seqparScanAlgorithm_t algorithm, const float* first, float* incoming,
            float* outgoing, void* stream);

  Shard shard_;
  float *incoming_ = nullptr, *behind_ = nullptr;
  uint8_t flags_[2] = {0, 0};  // of each direction
  bool ownScan_ = false;
};

/// The shard of this rank; throws nothing that readProblem() has checked.
Shard shardOf(const Problem& problem, bool alone);

}  // namespace seqpar::attn::linear
