// A rank's local work in distributed linear attention, as passes that an algorithm orders around its scan. One
// implementation for hosts (host/), one for CUDA (device/). Algorithms use this interface only.
#pragma once

#include <memory>
#include <string>

#include "attn/exec/exec.h"
#include "attn/linear/passes/map.h"
#include "attn/linear/passes/shard.h"

namespace seqpar::attn::linear {

/// Tensors of a call. States are [batch][heads][headDim][valueDim] fp32, dense.
struct Inputs {
  Tensor q, k, v;
  Gates gates;                     ///< by the family's rows
  const float* initial = nullptr;  ///< packed: [sequences][heads]..., at sequence starts. NULL: zeros
};

struct Gradients {
  Tensor dOut;                ///< in
  Tensor dq, dk, dv;          ///< out
  Gates dGates;               ///< out; without data: not requested
  float* dInitial = nullptr;  ///< out, packed: as Inputs::initial. NULL: not requested
};

/// Which scans the passes do themselves.
struct OwnScans {
  bool forward = false, backward = false;
};

/// A scan done by the passes.
struct OwnScan {
  uint8_t flags = 0;               ///< Shard::flags()
  MapUse map = MapUse::Nothing;    ///< the used part of the rank's map
  const float* initial = nullptr;  ///< incoming state of the scan's first rank; NULL: zeros
  float* incoming = nullptr;       ///< out
  float* outgoing = nullptr;       ///< out; NULL: not requested
};

/// All functions enqueue on the Exec's main stream. After open(), nothing is allocated.
class Passes {
 public:
  virtual ~Passes() = default;

  /// Takes memory. Runs twice, as described for Arena.
  virtual void carve(Arena& arena) = 0;
  /// For a shard that reserves: takes the caller's memory for data that the forward leaves for recompute(). Runs twice,
  /// as described for Arena, also before each call.
  virtual void carveReserve(Arena&) {}
  /// Builds kernels and tables. Throws Error.
  virtual void open() = 0;
  virtual std::string name() const = 0;

  /// The rank's map. Written by states() or stateGradients().
  virtual StateMap map() const = 0;

  /// Throw InvalidArgument in the name of `call` for tensors that the kernels of a pass, forward or backward, cannot
  /// read or write. Enqueue nothing.
  virtual void check(const char* /*call*/, const Inputs&, const Tensor& /*out*/) const {}
  virtual void check(const char* /*call*/, const Inputs&, const Gradients&) const {}
  /// Pass 1 of the forward: the states within the rank, and the used part of the rank's map.
  virtual void states(const Inputs& in, MapUse use) = 0;
  /// Whether the forward has work that needs no incoming state and can overlap with a scan on the Exec's side stream.
  virtual bool worksBesideScan() const = 0;
  /// That work, as much as the scan's time allows.
  virtual void besideScan(const Inputs& in) = 0;
  /// Pass 3: out, from `incoming`, the state before the rank's first token (NULL: zeros).
  virtual void outputs(const Inputs& in, const Tensor& out, const float* incoming) = 0;
  /// The whole forward without a scan: outputs(), plus the state after the rank's last token (NULL: not requested).
  virtual void forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) = 0;

  /// forwardAlone(), and a copy of `incoming` in `saved`.
  virtual void forwardAndSave(const Inputs& in, const Tensor& out, const float* incoming, float* final, float* saved) {
    copyStates(saved, incoming);
    forwardAlone(in, out, incoming, final);
  }

  /// Pass 1 of the backward: the gradients of states within the rank, and the used part of its map in reverse.
  virtual void stateGradients(const Inputs& in, const Gradients& gradients, MapUse use) = 0;
  /// Recomputes the forward's states from the saved incoming state: independent of stateGradients().
  virtual void recompute(const Inputs& in, const float* saved) = 0;
  /// All gradients, from `incoming`, the gradient of the state after the rank's last token (NULL: zeros).
  virtual void gradients(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming) = 0;
  /// The whole backward without a scan; dBefore: gradient of the state before the rank's first token (NULL: not
  /// requested).
  virtual void backwardAlone(const Inputs& in, const Gradients& gradients, const float* saved, const float* incoming,
                             float* dBefore) = 0;

  /// After open(): prepares those of the two functions below that the passes implement and all ranks support. Returns
  /// the same on all ranks; collective on GPUs. `comm` must outlive the passes.
  virtual OwnScans openScan(seqparComm_t) { return {}; }
  /// states(), a scan of the rank's map instead of seqparAllScan(), and outputs().
  virtual void forwardWithScan(const Inputs&, const Tensor& /*out*/, const OwnScan&) {}
  /// stateGradients(), the scan, recompute() and gradients().
  virtual void backwardWithScan(const Inputs&, const Gradients&, const float* /*saved*/, const OwnScan&) {}

  /// to = from, or zeros if `from` is NULL: states of the whole rank.
  virtual void copyStates(float* to, const float* from) = 0;
};

/// The passes for the memory that `exec` works on. Throws Error.
std::unique_ptr<Passes> makePasses(const Shard& shard, Exec& exec);
std::unique_ptr<Passes> makeDevicePasses(const Shard& shard, Exec& exec);       ///< in builds with CUDA
std::unique_ptr<Passes> makeDeviceDeltaPasses(const Shard& shard, Exec& exec);  ///< the same for the delta rule
std::unique_ptr<Passes> makeHostPasses(const Shard& shard, Exec& exec);         ///< those of the family

}  // namespace seqpar::attn::linear
