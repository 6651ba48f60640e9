#include "attn/softmax/mesh_cost.h"

#include <algorithm>

namespace seqpar::attn {

MeshBytes meshBytes(const CostModel& model, int a) {
  const auto& problem = model.problem();
  const auto& d = problem.desc;
  const int b = problem.ranks() / a;
  const auto queries = static_cast<double>((a - 1) * problem.queries.longest());
  const auto keys = static_cast<double>((b - 1) * problem.keys.longest());
  const double rows = model.bytes(queries, d.heads, 1, seqparFloat32);
  MeshBytes bytes;
  bytes.q = model.qBytes(queries);
  bytes.kv = model.kvBytes(keys);
  bytes.out = model.bytes(queries, d.heads, d.valueDim, problem.wireType()) + rows;
  bytes.gradientInputs = bytes.q + model.outBytes(queries) + model.rowBytes(queries);
  bytes.dq = model.bytes(queries, d.heads, d.headDim, problem.wireType());
  bytes.sums = model.kvSumBytes(keys);
  return bytes;
}

CostModel::Shape meshShape(const CostModel& model, int tiles) {
  return model.ownShape().with(model.otherShape(), tiles - 1);
}

MeshCost meshCost(const CostModel& model) {
  const int a = ranksOfQueryGroup(model.problem()), ranks = model.ranks();
  double most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    double scores = 0;
    for (int q = rank / a * a; q < rank / a * a + a; ++q) {
      for (int k = rank % a; k < ranks; k += a) scores += model.scores(q, k);
    }
    most = std::max(most, scores);
  }
  const auto shape = meshShape(model, a * (ranks / a));
  return {model.blockUs(most, false, shape), model.blockUs(most, true, shape), a, ranks / a, meshBytes(model, a)};
}

/// The a x b with the fewest bytes: the square for equal numbers of key and query heads, larger KV groups for fewer key
/// heads.
int ranksOfQueryGroup(const Problem& problem) {
  if (problem.desc.inner != 0) return static_cast<int>(problem.desc.inner);
  const CostModel model(problem);
  const auto bytesOf = [&](int a) {
    const auto bytes = meshBytes(model, a);
    return bytes.forward() + (problem.training() ? bytes.backward() : 0);
  };
  const int ranks = problem.ranks();
  int best = 1;  // among equals the most square
  for (int a = 1; a * a <= ranks; ++a) {
    if (ranks % a == 0) best = a;
  }
  for (int a = 1; a <= ranks; ++a) {
    if (ranks % a == 0 && bytesOf(a) < bytesOf(best)) best = a;
  }
  return best;
}

}  // namespace seqpar::attn
