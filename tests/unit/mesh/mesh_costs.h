// Costs for tests of schedules.
#pragma once

#include <random>
#include <vector>

#include "mesh/schedule.h"

namespace seqpar::test {

/// tile, q, kv, o of a forward pass.
inline MeshCosts forwardCosts(double tile, double q, double kv, double o) {
  MeshCosts costs;
  costs.tile = tile;
  costs.step[seqparMeshRecvQ] = q;
  costs.step[seqparMeshRecvKv] = kv;
  costs.step[seqparMeshSendO] = o;
  return costs;
}

inline MeshCosts backwardCosts(double tile, double odoq, double kv, double dq, double dkv) {
  MeshCosts costs;
  costs.tile = tile;
  costs.step[seqparMeshRecvOdoq] = odoq;
  costs.step[seqparMeshRecvKv] = kv;
  costs.step[seqparMeshSendDq] = dq;
  costs.step[seqparMeshSendDkv] = dkv;
  return costs;
}

/// Costs in eighths, so that sums of them are exact; any of them may be 0.
inline MeshCosts randomCosts(std::mt19937_64& random) {
  MeshCosts costs;
  const auto draw = [&](int most) { return static_cast<double>(random() % static_cast<unsigned>(most + 1)) / 8; };
  costs.tile = random() % 8 == 0 ? 0 : draw(16);
  const int most = random() % 2 == 0 ? 8 : 200;
  for (int operation = seqparMeshRecvQ; operation < SEQPAR_MESH_OPERATIONS; ++operation) {
    costs.step[static_cast<size_t>(operation)] = random() % 6 == 0 ? 0 : draw(most);
  }
  return costs;
}

}  // namespace seqpar::test
