// Cost model of the algorithms on a mesh of a x b ranks: MESH and ATTENTION2D.
#pragma once

#include "attn/softmax/cost.h"

namespace seqpar::attn {

/// The bytes that a rank sends in the groups of a mesh of a x b ranks.
struct MeshBytes {
  double q = 0, kv = 0;       ///< inputs of the forward pass
  double out = 0;             ///< partial outputs
  double gradientInputs = 0;  ///< queries, gradients of outputs, two values per row
  double dq = 0, sums = 0;
  double forward() const { return q + kv + out; }
  double backward() const { return gradientInputs + kv + dq + sums; }
};

struct MeshCost {
  double forwardUs = 0, backwardUs = 0;  ///< of a rank's tiles
  int a = 1, b = 1;
  MeshBytes bytes;
};

/// The number of ranks per Q group (a): desc.inner, or the shape with the fewest bytes.
int ranksOfQueryGroup(const Problem& problem);

/// The kernels of a rank: its own tile, and the others.
CostModel::Shape meshShape(const CostModel& model, int tiles);
MeshBytes meshBytes(const CostModel& model, int a);
MeshCost meshCost(const CostModel& model);

}  // namespace seqpar::attn
