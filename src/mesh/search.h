// The choice of a shape: the bytes of each block, the cost of moving them on given links, and the best of all shapes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/simulate.h"
#include "plan/link.h"

namespace seqpar {

/// seqparMeshParams_t with its zeros resolved; all values checked.
struct MeshProblem {
  int64_t tokens = 1, heads = 1, kvHeads = 1, headDim = 1, valueDim = 1;
  seqparDataType_t dataType = seqparBfloat16;
  seqparDataType_t wireType = seqparFloat32;
  bool causal = false;
  bool sendDelta = true;
  double forwardTile = 0;   ///< seconds of a full tile
  double backwardTile = 0;  ///< likewise
  int forwardWeight = 1;
  int backwardWeight = 1;
};

/// Bytes of one movement, by seqparMeshOperation_t.
using MeshBytes = std::array<int64_t, SEQPAR_MESH_OPERATIONS>;

MeshBytes meshBytes(const MeshProblem& problem);

/// Bytes that a rank sends in a pass, by the paper's formula.
int64_t passBytes(seqparMeshPass_t pass, MeshShape shape, const MeshBytes& bytes);

/// Where the ranks are and what a hop costs there.
struct MeshLinks {
  LinkModel model;
  Topology topology;

  int ranks() const { return static_cast<int>(topology.nodes.size()); }
};

/// `ranks` ranks with equal hops between all of them.
MeshLinks uniformLinks(int ranks, const Link& link);

/// The slowest hop of all rings of an axis, which run concurrently: hops that leave a node share the node's measured
/// link to the network.
Link ringLink(const MeshLinks& links, MeshShape shape, seqparMeshAxis_t axis);

MeshCosts meshCosts(seqparMeshPass_t pass, MeshShape shape, const MeshProblem& problem, const MeshLinks& links);

struct MeshEstimate {
  MeshShape shape;
  int64_t forwardBytes = 0, backwardBytes = 0;
  MeshTiming forward, backward;

  double weighted(const MeshProblem& problem) const {
    return problem.forwardWeight * forward.total + problem.backwardWeight * backward.total;
  }
};

MeshEstimate estimate(MeshShape shape, const MeshProblem& problem, const MeshLinks& links);

/// All shapes of the ranks in `links`, the best first: by time, then bytes, then a.
std::vector<MeshEstimate> searchShapes(const MeshProblem& problem, const MeshLinks& links);

}  // namespace seqpar
