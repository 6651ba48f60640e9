// Common base of the distributed linear attention algorithms: the rank's passes, and the All-Scan between them.
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

  void check(const char* call, const seqparAttnForwardArgs_t& args) const override;
  void check(const char* call, const seqparAttnBackwardArgs_t& args) const override;
  void forward(const seqparAttnForwardArgs_t& args) override;
  void backward(const seqparAttnBackwardArgs_t& args) override;

 protected:
  enum class Exchange {
    None,  ///< for any number of ranks
    Scan,
    ScanOrRelay  ///< a relay where relays() is true
  };
  LinearOperator(const Problem& problem, Exec& exec, Exchange exchange);

  /// The passes, ordered around the scan. Not called if there is no scan: on one rank, and in LOCAL.
  virtual void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) = 0;
  virtual void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) = 0;

  /// Lets the passes do the scans if they can; collective on GPUs. For scans without a named algorithm.
  void openOwnScan();
  const OwnScans& ownScans() const { return ownScans_; }
  /// The scans of a call that the passes do. Throws Error if the communicator has failed.
  OwnScan ownScan(const seqparAttnForwardArgs_t& args) const;
  OwnScan ownScan(const seqparAttnBackwardArgs_t& args) const;
  /// The used part of the rank's map.
  MapUse mapUse(const seqparAttnForwardArgs_t& args) const;
  MapUse mapUse(const seqparAttnBackwardArgs_t& args) const;
  /// The All-Scan of the map that the passes computed: writes the incoming states, and the outgoing state if it is
  /// requested.
  void scanForward(seqparScanAlgorithm_t algorithm, const seqparAttnForwardArgs_t& args, void* stream);
  void scanBackward(seqparScanAlgorithm_t algorithm, const seqparAttnBackwardArgs_t& args, void* stream);
  /// The passes' recompute() and scanBackward(), one after the other: all ranks but the last recompute until the
  /// gradients that they wait for have arrived.
  void recomputeAndScan(seqparScanAlgorithm_t algorithm, const Inputs& in, const seqparAttnBackwardArgs_t& args);

  Tensor out(const seqparAttnForwardArgs_t& args) const { return outTensor(problem_, args.out); }
  /// The state before the rank's first token, after scanForward().
  float* incoming(const seqparAttnForwardArgs_t& args) const { return args.saved != nullptr ? args.saved : incoming_; }
  const float* behind() const { return behind_; }  ///< gradient of the state after the last token, after scanBackward()
  /// The state before the first rank's first token, and the gradient of the state after the last rank's last token;
  /// NULL: zeros.
  const float* firstState(const seqparAttnForwardArgs_t& args) const {
    return isFirst() && !problem_.packed() ? args.initial : nullptr;
  }
  const float* lastGradient(const seqparAttnBackwardArgs_t& args) const { return isLast() ? args.dFinal : nullptr; }
  bool isFirst() const { return problem_.rank() == 0; }
  bool isLast() const { return problem_.rank() == problem_.ranks() - 1; }

  const Problem problem_;
  Exec& exec_;
  std::unique_ptr<Passes> passes_;

 private:
  /// LOCAL's order of passes, and that of every algorithm on one rank (local.cpp).
  void forwardAlone(const Inputs& in, const seqparAttnForwardArgs_t& args);
  void backwardAlone(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args);
  /// The destination of the gradient of the state before the first rank's first token; NULL: not requested.
  float* firstGradient(const seqparAttnBackwardArgs_t& args) const {
    return isFirst() && !problem_.packed() ? args.dInitial : nullptr;
  }
  /// Throws Error if the communicator has failed.
  void requireHealthy() const;
  template <typename Args>
  Inputs inputs(const Args& args) const;
  Gradients gradients(const seqparAttnBackwardArgs_t& args) const;
  void scan(seqparDirection_t direction, seqparScanAlgorithm_t algorithm, const float* first, float* incoming,
            float* outgoing, void* stream);

  Shard shard_;
  float *incoming_ = nullptr, *behind_ = nullptr;
  uint8_t flags_[2] = {0, 0};  // of each direction
  OwnScans ownScans_;
};

/// The gates of a call, or their gradients, by the family's rows: views as queryTensor(). A gate per head or token has
/// 1 as its last dimension.
Gates gateTensors(const Problem& problem, const seqparAttnTensor_t* given);

/// The shard of this rank. Does not throw for problems that readProblem() accepted.
Shard shardOf(const Problem& problem, bool alone);

}  // namespace seqpar::attn::linear
