// A rank's own work in distributed linear attention, in passes that an algorithm orders around its scan. One
// implementation for hosts (host/), one for CUDA (device/). Algorithms see this interface only.
#pragma once

#include <memory>
#include <string>

#include "attn/exec/exec.h"
#include "attn/linear/passes/shard.h"

namespace seqpar::attn::linear {

/// Tensors of a call. States are [batch][heads][headDim][valueDim] fp32, dense.
struct Inputs {
  Tensor q, k, v, gate;            ///< gate without data: no decay
  const float* initial = nullptr;  ///< packed: [sequences][heads]..., where sequences begin. NULL: zeros
};

struct Gradients {
  Tensor dOut;                ///< in
  Tensor dq, dk, dv, dGate;   ///< out. dGate without data: not wanted
  float* dInitial = nullptr;  ///< out, packed: as Inputs::initial. NULL: not wanted
};

/// A scan by the passes themselves.
struct OwnScan {
  uint8_t flags = 0;               ///< Shard::flags()
  bool mapWanted = false;          ///< the rank's map is part of what another rank, or `outgoing`, gets
  const float* initial = nullptr;  ///< what comes in on the first rank, whose own it is; NULL: zeros
  float* incoming = nullptr;       ///< out
  float* outgoing = nullptr;       ///< out; NULL: not wanted
};

/// All functions enqueue on the Exec's main stream. Between open() and the end nothing is allocated.
class Passes {
 public:
  virtual ~Passes() = default;

  /// Takes memory. Runs as Arena says.
  virtual void carve(Arena& arena) = 0;
  /// Of a shard that reserves: takes what the forward leaves for recompute(), in the caller's memory. Runs as Arena
  /// says, before each call too.
  virtual void carveReserve(Arena&) {}
  /// Builds what is needed. Throws Error.
  virtual void open() = 0;
  virtual std::string name() const = 0;

  /// The rank's map S -> diag(decay) S + state, as seqparAllScan() takes it: state [batch][heads][headDim][valueDim],
  /// decay [batch][heads][width] in decayForm(). states() or stateGradients() write it.
  virtual float* state() const = 0;
  virtual float* decay() const = 0;
  virtual seqparDecayForm_t decayForm() const = 0;

  /// Pass 1 of the forward: the states within the rank, and its map, which may be anything where it is not wanted.
  virtual void states(const Inputs& in, bool mapWanted) = 0;
  /// Whether the forward has work for the time of a scan that needs no state from outside.
  virtual bool worksBesideScan() const = 0;
  /// That work, for the time of a scan on the Exec's side stream: as much as that takes.
  virtual void besideScan(const Inputs& in) = 0;
  /// Pass 3: out, from `incoming`, the state before the rank's first token (NULL: zeros).
  virtual void outputs(const Inputs& in, const Tensor& out, const float* incoming) = 0;
  /// The whole forward without a scan: as outputs(), with the state after the rank's last token (NULL: not wanted).
  virtual void forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) = 0;

  /// Pass 1 of the backward: the gradients of states within the rank, and its map (in reverse: the same decay).
  virtual void stateGradients(const Inputs& in, const Gradients& gradients, bool mapWanted) = 0;
  /// The forward's states again, from the saved incoming state: needs nothing of stateGradients().
  virtual void recompute(const Inputs& in, const float* saved) = 0;
  /// All gradients, from `incoming`, the gradient of the state after the rank's last token (NULL: zeros).
  virtual void gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) = 0;
  /// The whole backward without a scan; dBefore: gradient of the state before the rank's first token (NULL: not
  /// wanted).
  virtual void backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming,
                             float* dBefore) = 0;

  /// Collective, after open(): prepares the two functions behind it, where the passes have them and the ranks can do
  /// it: on all alike. `comm` must outlive the passes.
  virtual bool openScan(seqparComm_t) { return false; }
  /// states(), a scan of the rank's map in place of seqparAllScan(), and outputs().
  virtual void forwardWithScan(const Inputs&, const Tensor& /*out*/, const OwnScan&) {}
  /// stateGradients(), the scan, recompute() and gradients().
  virtual void backwardWithScan(const Inputs&, const Gradients&, const float* /*saved*/, const OwnScan&) {}

  /// to = from, or zeros for NULL: states of the whole rank.
  virtual void copyStates(float* to, const float* from) = 0;
};

/// The passes for the memory that `exec` works on. Throws Error.
std::unique_ptr<Passes> makePasses(const Shard& shard, Exec& exec);
std::unique_ptr<Passes> makeDevicePasses(const Shard& shard, Exec& exec);  ///< in builds with CUDA
std::unique_ptr<Passes> makeHostPasses(const Shard& shard, Exec& exec);

}  // namespace seqpar::attn::linear
