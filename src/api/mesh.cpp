// Meshes: choice of the shape, groups, schedules.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "api/meshes.h"
#include "base/thread_object.h"
#include "base/versioned.h"
#include "mesh/print.h"
#include "mesh/search.h"

using namespace seqpar;

namespace {

constexpr double kUs = 1e6;

template <typename Value>
void requireRange(const char* call, const char* field, Value value, Value least, Value most) {
  if (!(value >= least && value <= most)) {
    fail(seqparInvalidArgument, call, ": params->", field, " is ", value, ", expected ", least, " to ", most);
  }
}

/// Rejects sizes where the bytes of all blocks of the largest communicator would overflow.
void requireCountable(const char* call, const seqparMeshParams_t& params) {
  constexpr double kMostNumbers = 1e14;
  const double numbers = static_cast<double>(params.tokens) * static_cast<double>(params.heads) *
                         (static_cast<double>(params.headDim) + static_cast<double>(params.valueDim));
  if (numbers > kMostNumbers) {
    fail(seqparInvalidArgument, call, ": params has a block of ", params.tokens, " tokens x ", params.heads,
         " heads x (", params.headDim, " + ", params.valueDim, "), expected at most ", kMostNumbers, " numbers");
  }
}

MeshProblem checkParams(const char* call, seqparMeshParams_t params) {
  constexpr int64_t kMostExtent = int64_t{1} << 40;
  constexpr double kMostUs = 1e12;
  constexpr int kMostWeight = 1 << 20;
  if (params.kvHeads == 0) params.kvHeads = params.heads;
  if (params.valueDim == 0) params.valueDim = params.headDim;
  requireRange<int64_t>(call, "tokens", params.tokens, 1, kMostExtent);
  requireRange<int64_t>(call, "heads", params.heads, 1, kMostExtent);
  requireRange<int64_t>(call, "kvHeads", params.kvHeads, 1, kMostExtent);
  requireRange<int64_t>(call, "headDim", params.headDim, 1, kMostExtent);
  requireRange<int64_t>(call, "valueDim", params.valueDim, 1, kMostExtent);
  requireRange<int>(call, "dataType", params.dataType, seqparFloat32, seqparBfloat16);
  requireRange<int>(call, "wireType", params.wireType, seqparFloat32, seqparBfloat16);
  requireRange(call, "causal", params.causal, 0, 1);
  requireRange(call, "sendDelta", params.sendDelta, 0, 1);
  requireRange(call, "forwardUs", params.forwardUs, 0., kMostUs);
  requireRange(call, "backwardUs", params.backwardUs, 0., kMostUs);
  requireRange(call, "latencyUs", params.latencyUs, 0., kMostUs);
  requireRange(call, "bandwidth", params.bandwidth, params.latencyUs > 0 ? 1. : 0., 1e18);
  requireRange(call, "forwardWeight", params.forwardWeight, 0, kMostWeight);
  requireRange(call, "backwardWeight", params.backwardWeight, params.forwardWeight > 0 ? 0 : 1, kMostWeight);
  requireCountable(call, params);
  if (params.heads % params.kvHeads != 0) {
    fail(seqparInvalidArgument, call, ": params->kvHeads is ", params.kvHeads,
         ", expected a divisor of heads = ", params.heads);
  }

  MeshProblem problem;
  problem.tokens = params.tokens;
  problem.heads = params.heads;
  problem.kvHeads = params.kvHeads;
  problem.headDim = params.headDim;
  problem.valueDim = params.valueDim;
  problem.dataType = static_cast<seqparDataType_t>(params.dataType);
  problem.wireType = static_cast<seqparDataType_t>(params.wireType);
  problem.causal = params.causal != 0;
  problem.sendDelta = params.sendDelta != 0;
  problem.forwardTile = params.forwardUs / kUs;
  problem.backwardTile = params.backwardUs / kUs;
  problem.forwardWeight = params.forwardWeight;
  problem.backwardWeight = params.backwardWeight;
  return problem;
}

struct Planned {
  MeshProblem problem;
  MeshLinks links;
};

Planned plan(const char* call, const seqparMeshParams_t* params, const Communicator& comm) {
  const seqparMeshParams_t defaults = SEQPAR_MESH_PARAMS_INITIALIZER;
  const auto given = readVersioned(call, "params", params, defaults);
  Planned planned{checkParams(call, given), {comm.links(), comm.topology()}};
  if (given.bandwidth > 0) {
    planned.links = uniformLinks(comm.size(), {given.latencyUs / kUs, 1 / given.bandwidth, 0});
  }
  return planned;
}

seqparMeshEstimate_t toC(const MeshEstimate& estimate) {
  return {estimate.shape.a,
          estimate.shape.b,
          estimate.forwardBytes,
          estimate.backwardBytes,
          estimate.forward.total * kUs,
          estimate.backward.total * kUs,
          estimate.forward.exposed * kUs,
          estimate.backward.exposed * kUs};
}

/// The schedule of a pass, and its costs.
struct Scheduled {
  const MeshSchedule& schedule;
  const MeshCosts& costs;
};

Scheduled scheduleOf(const char* call, const MeshEntry& mesh, int pass) {
  if (pass != seqparMeshForward && pass != seqparMeshBackward) {
    fail(seqparInvalidArgument, call, ": pass is ", pass, ", expected seqparMeshForward or seqparMeshBackward");
  }
  return {mesh.schedules[static_cast<size_t>(pass)], mesh.costs[static_cast<size_t>(pass)]};
}

/// Stores all of `from` in `out`, unless that is null, and their count in *count.
template <typename Value>
void store(const char* call, const char* argument, const std::vector<Value>& from, Value* out, int* count) {
  const int have = static_cast<int>(from.size());
  if (out != nullptr && *count < have) {
    fail(seqparInvalidArgument, call, ": ", argument, " has ", *count, " entries, expected at least ", have);
  }
  if (out != nullptr) std::copy(from.begin(), from.end(), out);
  *count = have;
}

}  // namespace

namespace seqpar {

HandleTable<MeshEntry, seqparMesh_t>& meshes() {
  // Never destroyed, like the other tables.
  return handleTable<MeshEntry, seqparMesh_t>();
}

void requireAxis(const char* call, int axis) {
  if (axis != seqparMeshAxisQ && axis != seqparMeshAxisKv) {
    fail(seqparInvalidArgument, call, ": axis is ", axis, ", expected seqparMeshAxisQ or seqparMeshAxisKv");
  }
}

}  // namespace seqpar

extern "C" {

SEQPAR_API seqparResult_t seqparMeshPlan(const seqparMeshParams_t* params, seqparComm_t handle,
                                         seqparMeshEstimate_t* estimates, int* count) {
  const char* call = "seqparMeshPlan";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "count", count);
    const auto planned = plan(call, params, comm);
    if (estimates == nullptr) {
      *count = static_cast<int>(meshShapes(comm.size()).size());
      return;
    }
    const auto all = searchShapes(planned.problem, planned.links);
    const auto stored = std::min(all.size(), static_cast<size_t>(std::max(*count, 0)));
    std::transform(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(stored), estimates, toC);
    *count = static_cast<int>(all.size());
  });
}

namespace {

/// meshSchedule(), which is equal on all ranks: a thread that creates the meshes of several ranks computes it once.
MeshSchedule scheduleOf(seqparMeshPass_t pass, MeshShape shape, const MeshCosts& costs) {
  struct Latest {
    MeshCosts costs;
    MeshSchedule schedule;
  };
  struct Both {
    std::array<Latest, 2> of;
  };
  auto& latest = ofThread<Both>().of;
  Latest& known = latest[static_cast<size_t>(pass)];
  const auto& has = known.schedule.shape;
  if (known.schedule.tiles.empty() || has.a != shape.a || has.b != shape.b || known.costs.step != costs.step ||
      known.costs.tile != costs.tile) {
    known = {costs, meshSchedule(pass, shape, costs)};
  }
  return known.schedule;
}

}  // namespace

SEQPAR_API seqparResult_t seqparMeshCreate(seqparMesh_t* mesh, int a, int b, const seqparMeshParams_t* params,
                                           seqparComm_t handle) {
  const char* call = "seqparMeshCreate";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "mesh", mesh);
    *mesh = nullptr;
    const bool choose = a == 0 && b == 0;
    if (!choose && (a < 1 || b < 1 || static_cast<int64_t>(a) * b != comm.size())) {
      fail(seqparInvalidArgument, call, ": a is ", a, " and b is ", b, ", expected a x b = ", comm.size(),
           " ranks, or 0 and 0");
    }
    const seqparMeshParams_t defaults = SEQPAR_MESH_PARAMS_INITIALIZER;
    const auto planned = plan(call, params == nullptr ? &defaults : params, comm);
    auto entry = std::make_shared<MeshEntry>();
    entry->comm = handle;
    entry->entry = require(comms(), handle, call, "comm", "communicator");
    entry->shape = choose ? searchShapes(planned.problem, planned.links).front().shape : MeshShape{a, b};
    for (const auto axis : {seqparMeshAxisQ, seqparMeshAxisKv}) {
      entry->groups[static_cast<size_t>(axis)] = meshGroup(entry->shape, axis, comm.rank());
    }
    for (const auto pass : {seqparMeshForward, seqparMeshBackward}) {
      const auto costs = meshCosts(pass, entry->shape, planned.problem, planned.links);
      entry->costs[static_cast<size_t>(pass)] = costs;
      entry->schedules[static_cast<size_t>(pass)] = scheduleOf(pass, entry->shape, costs);
    }
    *mesh = meshes().add(std::move(entry));
  });
}

SEQPAR_API seqparResult_t seqparMeshDestroy(seqparMesh_t mesh) {
  const char* call = "seqparMeshDestroy";
  return atBoundary(call, [&] {
    if (mesh == nullptr) return;
    findMesh(call, mesh);
    meshes().remove(mesh);
  });
}

SEQPAR_API seqparResult_t seqparMeshShape(seqparMesh_t mesh, int* a, int* b) {
  return atMesh("seqparMeshShape", mesh, [&](const MeshEntry& entry) {
    if (a != nullptr) *a = entry.shape.a;
    if (b != nullptr) *b = entry.shape.b;
  });
}

SEQPAR_API seqparResult_t seqparMeshGroup(seqparMesh_t mesh, int axis, int* ranks, int* position) {
  const char* call = "seqparMeshGroup";
  return atMesh(call, mesh, [&](const MeshEntry& entry) {
    requireAxis(call, axis);
    const auto& group = entry.group(axis);
    if (ranks != nullptr) std::copy(group.ranks.begin(), group.ranks.end(), ranks);
    if (position != nullptr) *position = group.position;
  });
}

SEQPAR_API seqparResult_t seqparMeshSchedule(seqparMesh_t mesh, int pass, seqparMeshStep_t* steps,
                                             seqparMeshTile_t* tiles, int* stepCount, int* tileCount) {
  const char* call = "seqparMeshSchedule";
  return atMesh(call, mesh, [&](const MeshEntry& entry) {
    const auto& schedule = scheduleOf(call, entry, pass).schedule;
    requirePointer(call, "stepCount", stepCount);
    requirePointer(call, "tileCount", tileCount);
    store(call, "steps", schedule.steps, steps, stepCount);
    store(call, "tiles", schedule.tiles, tiles, tileCount);
  });
}

SEQPAR_API seqparResult_t seqparMeshScheduleText(seqparMesh_t mesh, int pass, int json, char* text, size_t* bytes) {
  const char* call = "seqparMeshScheduleText";
  return atMesh(call, mesh, [&](const MeshEntry& entry) {
    const auto [schedule, costs] = scheduleOf(call, entry, pass);
    requirePointer(call, "bytes", bytes);
    const auto all = json != 0 ? scheduleJson(schedule, costs) : scheduleDiagram(schedule, costs);
    if (text != nullptr && *bytes <= all.size()) {
      fail(seqparInvalidArgument, call, ": bytes is ", *bytes, ", expected at least ", all.size() + 1);
    }
    if (text != nullptr) std::memcpy(text, all.c_str(), all.size() + 1);
    *bytes = all.size() + 1;
  });
}

}  // extern "C"
