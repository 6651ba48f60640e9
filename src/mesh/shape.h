// The shape of a mesh, a x b ranks, and the groups that follow from it.
#pragma once

#include <vector>

#include "seqpar/mesh.h"

namespace seqpar {

struct MeshShape {
  int a = 1;  ///< ranks of a Q group: rows of a rank's tiles
  int b = 1;  ///< ranks of a KV group: columns of a rank's tiles

  int ranks() const { return a * b; }
  int members(seqparMeshAxis_t axis) const { return axis == seqparMeshAxisQ ? a : b; }
  bool operator==(const MeshShape&) const = default;
};

/// All shapes of `ranks` ranks, by growing a.
std::vector<MeshShape> meshShapes(int ranks);

/// One rank's group in an axis.
struct MeshGroup {
  std::vector<int> ranks;  ///< of the communicator, by position
  int position = 0;        ///< this rank's

  int size() const { return static_cast<int>(ranks.size()); }
  int successor() const { return ranks[static_cast<size_t>((position + 1) % size())]; }
  int predecessor() const { return ranks[static_cast<size_t>((position + size() - 1) % size())]; }
  /// The rank that owns block #index.
  int owner(int index) const { return ranks[static_cast<size_t>((position + size() - index) % size())]; }
};

MeshGroup meshGroup(MeshShape shape, seqparMeshAxis_t axis, int rank);

}  // namespace seqpar
