// Schedules of a mesh as data: which step of which ring travels while which tiles are computed.
#pragma once

#include <array>
#include <vector>

#include "mesh/shape.h"

namespace seqpar {

/// What a step takes, in seconds.
struct MeshCosts {
  std::array<double, SEQPAR_MESH_OPERATIONS> step{};  ///< one movement, by seqparMeshOperation_t
  double tile = 0;                                    ///< computing one tile
};

struct MeshSchedule {
  seqparMeshPass_t pass = seqparMeshForward;
  MeshShape shape;
  std::vector<seqparMeshStep_t> steps;
  std::vector<seqparMeshTile_t> tiles;  ///< in the order in which they are computed
};

/// Mesh-Attention, Algorithm 2: greedily receives what unlocks most tiles for its cost, then sends rows as they get
/// complete, computing meanwhile as many tiles as hide the movement.
MeshSchedule forwardSchedule(MeshShape shape, const MeshCosts& costs);

/// Mesh-Attention, section 3.6: receives as the forward does; tiles are taken from the row or the column whose sending
/// is nearer for its cost, so that one gets complete before the other is begun.
MeshSchedule backwardSchedule(MeshShape shape, const MeshCosts& costs);

MeshSchedule meshSchedule(seqparMeshPass_t pass, MeshShape shape, const MeshCosts& costs);

}  // namespace seqpar
