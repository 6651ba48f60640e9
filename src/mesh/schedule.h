// Schedules of a mesh as data: which ring step runs while which tiles are computed.
#pragma once

#include <array>
#include <vector>

#include "mesh/shape.h"

namespace seqpar {

/// Costs of a schedule's parts, in seconds.
struct MeshCosts {
  std::array<double, SEQPAR_MESH_OPERATIONS> step{};  ///< one movement, by seqparMeshOperation_t
  double tile = 0;                                    ///< computing one tile
};

struct MeshSchedule {
  seqparMeshPass_t pass = seqparMeshForward;
  MeshShape shape;
  std::vector<seqparMeshStep_t> steps;
  std::vector<seqparMeshTile_t> tiles;  ///< in order of computation
};

/// Mesh-Attention, Algorithm 2: greedily receives the block that unlocks most tiles for its cost, then sends rows as
/// they complete. Each movement overlaps with as many tiles as hide it.
MeshSchedule forwardSchedule(MeshShape shape, const MeshCosts& costs);

/// Mesh-Attention, section 3.6: receives as the forward pass does. Tiles are taken from the row or column that can be
/// sent sooner relative to its cost, so one line completes before the next is started.
MeshSchedule backwardSchedule(MeshShape shape, const MeshCosts& costs);

MeshSchedule meshSchedule(seqparMeshPass_t pass, MeshShape shape, const MeshCosts& costs);

}  // namespace seqpar
