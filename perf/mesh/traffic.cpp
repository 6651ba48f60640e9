#include "mesh/traffic.h"

#include "common/values.h"

namespace seqpar::perf {

MeshTraffic::MeshTraffic(seqparMesh_t mesh, seqparMeshPass_t pass, const MeshProblem& problem, seqparComm_t comm)
    : q_(mesh, seqparMeshAxisQ), kv_(mesh, seqparMeshAxisKv), wireType_(problem.wireType) {
  const auto rows = static_cast<size_t>(problem.tokens * problem.heads);
  const size_t queries = rows * static_cast<size_t>(problem.headDim);
  const auto keys = static_cast<size_t>(problem.tokens * problem.kvHeads * problem.headDim);
  ofQ_.emplace_back(q_, queries * bytesOf(problem.type), comm);
  for (int tensor = 0; tensor < 2; ++tensor) ofKv_.emplace_back(kv_, keys * bytesOf(problem.type), comm);
  if (pass == seqparMeshForward) {
    outputs_.emplace(q_, problem.tokens, problem.heads, problem.headDim, wireType_, comm);
  } else {
    ofQ_.emplace_back(q_, queries * bytesOf(problem.type), comm);                                  // dO
    for (int tensor = 0; tensor < 2; ++tensor) ofQ_.emplace_back(q_, rows * sizeof(float), comm);  // lse, delta
    dq_.emplace_back(q_, queries, wireType_, comm);
    for (int tensor = 0; tensor < 2; ++tensor) dkv_.emplace_back(kv_, keys, wireType_, comm);
  }
  int stepCount = 0, tileCount = 0;
  require(seqparMeshSchedule(mesh, pass, nullptr, nullptr, &stepCount, &tileCount), "seqparMeshSchedule");
  steps_.resize(static_cast<size_t>(stepCount));
  std::vector<seqparMeshTile_t> tiles(static_cast<size_t>(tileCount));
  require(seqparMeshSchedule(mesh, pass, steps_.data(), tiles.data(), &stepCount, &tileCount), "seqparMeshSchedule");
}

template <typename Each>
void MeshTraffic::forEach(Each each) {
  for (auto* list : {&ofQ_, &ofKv_}) {
    for (auto& one : *list) each(one);
  }
  for (auto* list : {&dq_, &dkv_}) {
    for (auto& one : *list) each(one);
  }
  if (outputs_) each(*outputs_);
}

void MeshTraffic::prepare(bool atOnce) {
  forEach([&](auto& one) { one.prepare(atOnce); });
}

size_t MeshTraffic::wrong(bool atOnce) {
  size_t count = 0;
  forEach([&](auto& one) { count += one.wrong(atOnce); });
  return count;
}

void MeshTraffic::runSteps(void* stream) {
  for (const auto& step : steps_) {
    switch (step.operation) {
      case seqparMeshRecvQ:
      case seqparMeshRecvOdoq:
        receive(q_, ofQ_, step.index, stream);
        break;
      case seqparMeshRecvKv:
        receive(kv_, ofKv_, step.index, stream);
        break;
      case seqparMeshSendO:
        outputs_->send(step.index, stream);
        break;
      case seqparMeshSendDq:
        send(q_, dq_, step.index, stream);
        break;
      case seqparMeshSendDkv:
        send(kv_, dkv_, step.index, stream);
        break;
      default:
        break;
    }
  }
  if (outputs_) return outputs_->send(0, stream);
  send(q_, dq_, 0, stream);
  send(kv_, dkv_, 0, stream);
}

void MeshTraffic::runAtOnce(void* stream) {
  for (auto* list : {&ofQ_, &ofKv_}) {
    for (auto& one : *list) one.gather(stream);
  }
  for (auto* list : {&dq_, &dkv_}) {
    for (auto& one : *list) one.scatter(stream);
  }
  if (outputs_) outputs_->scatter(stream);
}

void MeshTraffic::receive(const MeshGroup& group, std::deque<Blocks>& blocks, int index, void* stream) {
  std::vector<seqparMeshPart_t> parts;
  for (auto& one : blocks) parts.push_back(one.part(index));
  require(seqparMeshReceive(group.axis, parts.data(), static_cast<int>(parts.size()), group.mesh, stream),
          "seqparMeshReceive");
}

void MeshTraffic::send(const MeshGroup& group, std::deque<Sums>& sums, int index, void* stream) {
  std::vector<seqparMeshSum_t> parts;
  for (auto& one : sums) parts.push_back(one.part(index));
  const auto type = static_cast<seqparDataType_t>(wireType_);
  require(seqparMeshReduceSum(group.axis, index, parts.data(), static_cast<int>(parts.size()), type, type, group.mesh,
                              stream),
          "seqparMeshReduceSum");
}

}  // namespace seqpar::perf
