#include "mesh/search.h"

#include <algorithm>
#include <tuple>

#include "base/convert.h"

namespace seqpar {

MeshBytes meshBytes(const MeshProblem& problem) {
  const auto data = static_cast<int64_t>(sizeOf(problem.dataType));
  const auto wire = static_cast<int64_t>(sizeOf(problem.wireType));
  const int64_t query = problem.tokens * problem.heads * problem.headDim;
  const int64_t output = problem.tokens * problem.heads * problem.valueDim;
  const int64_t keyAndValue = problem.tokens * problem.kvHeads * (problem.headDim + problem.valueDim);
  const int64_t lse = problem.tokens * problem.heads * static_cast<int64_t>(sizeof(float));
  const int64_t outputOrDelta = problem.sendDelta ? lse : output * data;
  MeshBytes bytes{};
  bytes[seqparMeshRecvQ] = query * data;
  bytes[seqparMeshRecvKv] = keyAndValue * data;
  bytes[seqparMeshRecvOdoq] = (query + output) * data + lse + outputOrDelta;
  bytes[seqparMeshSendO] = output * wire + lse;
  bytes[seqparMeshSendDq] = query * wire;
  bytes[seqparMeshSendDkv] = keyAndValue * wire;
  return bytes;
}

int64_t passBytes(seqparMeshPass_t pass, MeshShape shape, const MeshBytes& bytes) {
  const int64_t rows = shape.a - 1;
  const int64_t columns = shape.b - 1;
  if (pass == seqparMeshForward) {
    return rows * (bytes[seqparMeshRecvQ] + bytes[seqparMeshSendO]) + columns * bytes[seqparMeshRecvKv];
  }
  return rows * (bytes[seqparMeshRecvOdoq] + bytes[seqparMeshSendDq]) +
         columns * (bytes[seqparMeshRecvKv] + bytes[seqparMeshSendDkv]);
}

Link ringLink(const MeshLinks& links, MeshShape shape, seqparMeshAxis_t axis) {
  std::vector<int> leaving(links.nodes.size(), 0);
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const int from = links.nodes[static_cast<size_t>(rank)];
    const int to = links.nodes[static_cast<size_t>(meshGroup(shape, axis, rank).successor())];
    if (from != to) ++leaving[static_cast<size_t>(from)];
  }
  const int most = *std::max_element(leaving.begin(), leaving.end());
  if (most == 0) return links.model.node;
  Link link = links.model.network;
  link.secondsPerByte *= most;
  return link;
}

MeshCosts meshCosts(seqparMeshPass_t pass, MeshShape shape, const MeshProblem& problem, const MeshLinks& links) {
  const auto bytes = meshBytes(problem);
  const Link ofQ = ringLink(links, shape, seqparMeshAxisQ);
  const Link ofKv = ringLink(links, shape, seqparMeshAxisKv);
  MeshCosts costs;
  for (size_t operation = seqparMeshRecvQ; operation < bytes.size(); ++operation) {
    const bool keys = operation == seqparMeshRecvKv || operation == seqparMeshSendDkv;
    const Link& link = keys ? ofKv : ofQ;
    costs.step[operation] = link.alpha + static_cast<double>(bytes[operation]) * link.secondsPerByte;
  }
  const double full = pass == seqparMeshForward ? problem.forwardTile : problem.backwardTile;
  costs.tile = problem.causal ? full / 2 : full;
  return costs;
}

MeshEstimate estimate(MeshShape shape, const MeshProblem& problem, const MeshLinks& links) {
  const auto time = [&](seqparMeshPass_t pass) {
    const auto costs = meshCosts(pass, shape, problem, links);
    return simulate(meshSchedule(pass, shape, costs), costs);
  };
  const auto bytes = meshBytes(problem);
  return {shape, passBytes(seqparMeshForward, shape, bytes), passBytes(seqparMeshBackward, shape, bytes),
          time(seqparMeshForward), time(seqparMeshBackward)};
}

std::vector<MeshEstimate> searchShapes(const MeshProblem& problem, const MeshLinks& links) {
  std::vector<MeshEstimate> all;
  for (const MeshShape shape : meshShapes(static_cast<int>(links.nodes.size()))) {
    all.push_back(estimate(shape, problem, links));
  }
  const auto key = [&](const MeshEstimate& one) {
    const int64_t bytes = problem.forwardWeight * one.forwardBytes + problem.backwardWeight * one.backwardBytes;
    return std::tuple(one.weighted(problem), bytes, one.shape.a);
  };
  std::sort(all.begin(), all.end(),
            [&](const MeshEstimate& left, const MeshEstimate& right) { return key(left) < key(right); });
  return all;
}

}  // namespace seqpar
