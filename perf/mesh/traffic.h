// The data movement of one pass of attention on a mesh, without the attention.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "mesh/tensors.h"

namespace seqpar::perf {

/// The attention problem that defines the movements.
struct MeshProblem {
  int64_t tokens = 1;                             ///< of a block
  int64_t heads = 8, kvHeads = 0, headDim = 128;  ///< kvHeads 0: not given yet
  int type = seqparFloat32;                       ///< of blocks
  int wireType = seqparFloat32;                   ///< of partial results, in memory and on the wire
};

/// One rank's buffers for one pass on one mesh.
class MeshTraffic {
 public:
  MeshTraffic(seqparMesh_t mesh, seqparMeshPass_t pass, const MeshProblem& problem, seqparComm_t comm);

  /// Restores inputs and invalidates the rest: for the steps, or for the forms without overlap.
  void prepare(bool atOnce);
  /// All steps of the schedule, one after the other, on `stream` (null: blocking).
  void runSteps(void* stream);
  /// All-gathers and reduce-scatters of the same data.
  void runAtOnce(void* stream);
  /// Number of wrong elements after prepare() and one run.
  size_t wrong(bool atOnce);

 private:
  template <typename Each>
  void forEach(Each each);
  void receive(const MeshGroup& group, std::deque<Blocks>& blocks, int index, void* stream);
  void send(const MeshGroup& group, std::deque<Sums>& sums, int index, void* stream);

  MeshGroup q_, kv_;
  int wireType_;
  std::deque<Blocks> ofQ_, ofKv_;
  std::deque<Sums> dq_, dkv_;       ///< backward
  std::optional<Outputs> outputs_;  ///< forward
  std::vector<seqparMeshStep_t> steps_;
};

}  // namespace seqpar::perf
