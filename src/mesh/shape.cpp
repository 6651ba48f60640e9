#include "mesh/shape.h"

namespace seqpar {

std::vector<MeshShape> meshShapes(int ranks) {
  std::vector<MeshShape> shapes;
  for (int a = 1; a <= ranks; ++a) {
    if (ranks % a == 0) shapes.push_back({a, ranks / a});
  }
  return shapes;
}

MeshGroup meshGroup(MeshShape shape, seqparMeshAxis_t axis, int rank) {
  const int a = shape.a;
  const bool queries = axis == seqparMeshAxisQ;
  MeshGroup group;
  group.position = queries ? rank % a : rank / a;
  for (int x = 0; x < shape.members(axis); ++x) group.ranks.push_back(queries ? rank / a * a + x : rank % a + a * x);
  return group;
}

}  // namespace seqpar
