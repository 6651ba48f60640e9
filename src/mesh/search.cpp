#include "mesh/search.h"

#include <algorithm>
#include <tuple>

#include "base/convert.h"
#include "plan/cost.h"

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

MeshLinks uniformLinks(int ranks, const Link& link) {
  MeshLinks links;
  links.model.process = links.model.node = links.model.network = link;
  links.topology.nodes.assign(static_cast<size_t>(ranks), 0);
  links.topology.processes = links.topology.nodes;
  return links;
}

Link ringLink(const MeshLinks& links, MeshShape shape, seqparMeshAxis_t axis) {
  const auto& [nodes, processes] = std::tie(links.topology.nodes, links.topology.processes);
  std::vector<int> leaving(nodes.size(), 0);
  bool betweenProcesses = false;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const auto from = static_cast<size_t>(rank);
    const auto to = static_cast<size_t>(meshGroup(shape, axis, rank).successor());
    if (nodes[from] != nodes[to]) ++leaving[static_cast<size_t>(nodes[from])];
    betweenProcesses = betweenProcesses || processes[from] != processes[to];
  }
  const int most = *std::max_element(leaving.begin(), leaving.end());
  if (most == 0) return betweenProcesses ? links.model.node : links.model.process;
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
    costs.step[operation] = shiftSeconds(link, links.model.contention, static_cast<double>(bytes[operation]));
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
  for (const MeshShape shape : meshShapes(links.ranks())) {
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
