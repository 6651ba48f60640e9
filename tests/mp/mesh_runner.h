// One rank's part of Mesh-Attention over the C interface: by the steps of a schedule, and by single collectives.
#pragma once

#include "mesh_attention.h"
#include "seqpar/mesh.h"

namespace seqpar::test {

/// Types of partial results in memory and on the wire.
struct MeshTypes {
  seqparDataType_t data, wire;
};

/// What a rank computes with.
struct MeshPart {
  seqparComm_t comm;
  seqparMesh_t mesh;
  const MeshAttention& attention;
  MeshTypes types;
  bool onStream;
};

/// Collective, for this rank's block. `atOnce`: with gathers and reductions instead of the schedule. Throws
/// std::runtime_error if a call fails.
Outputs meshOutputs(const MeshPart& part, bool atOnce);
Gradients meshGradients(const MeshPart& part, bool atOnce);

}  // namespace seqpar::test
