// The movements of a mesh.
#include <algorithm>

#include "api/buffers.h"
#include "api/meshes.h"
#include "base/checked.h"
#include "base/convert.h"
#include "base/versioned.h"
#include "comm/agreement.h"
#include "exchange/backend.h"
#include "mesh/backend.h"

using namespace seqpar;

namespace {

/// A call on a mesh: body(const MeshEntry&, Communicator&).
template <typename Body>
seqparResult_t onMesh(const char* call, seqparMesh_t handle, Body&& body) {
  std::shared_ptr<MeshEntry> mesh;
  const auto result = atBoundary(call, [&] { mesh = findMesh(call, handle); });
  if (result != seqparSuccess) return result;
  return onComm(call, mesh->comm, [&](Communicator& comm) { body(*mesh, comm); });
}

seqparDataType_t typeOf(const char* call, const char* argument, int type) {
  if (type < seqparFloat32 || type > seqparBfloat16) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", type, ", expected a seqparDataType_t");
  }
  return static_cast<seqparDataType_t>(type);
}

PartialTypes checkTypes(const char* call, int dataType, int wireType) {
  const PartialTypes types{typeOf(call, "dataType", dataType), typeOf(call, "wireType", wireType)};
  if (wireType != dataType && dataType != seqparFloat32) {
    fail(seqparInvalidArgument, call, ": wireType is ", typeName(types.wire), " and dataType is ", typeName(types.data),
         ", expected the same type, or fp32 data");
  }
  return types;
}

void requireIndex(const char* call, int index, const MeshGroup& group) {
  if (index < 0 || index >= group.size()) {
    fail(seqparInvalidArgument, call, ": index is ", index, ", expected 0 to ", group.size() - 1, " in a group of ",
         group.size());
  }
}

void requireParts(const char* call, const void* parts, int count) {
  requirePointer(call, "parts", parts);
  if (count < 1 || count > SEQPAR_MESH_PARTS) {
    fail(seqparInvalidArgument, call, ": count is ", count, ", expected 1 to ", SEQPAR_MESH_PARTS);
  }
}

void requireAll(const char* call, std::initializer_list<Buffer> buffers, const Communicator& comm) {
  for (const auto& buffer : buffers) {
    if (buffer.bytes > 0) requirePointer(call, buffer.name, buffer.data);
    requireMemory(call, buffer, comm);
  }
}

void requireAllDisjoint(const char* call, std::span<const Buffer> outputs, std::span<const Buffer> inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const auto& input : inputs) requireDisjoint(call, outputs[i], input, false);
    for (size_t j = i + 1; j < outputs.size(); ++j) requireDisjoint(call, outputs[i], outputs[j], false);
  }
}

void requireAgreement(const char* call, Communicator& comm, std::initializer_list<NamedValue> values) {
  comm.compareNext(call, std::span(values.begin(), values.size()));
}

void requireAtLeast(const char* call, const char* argument, int64_t value, int64_t least) {
  if (value < least) fail(seqparInvalidArgument, call, ": ", argument, " is ", value, ", expected at least ", least);
}

/// Also compares `array` between the ranks of `group`.
void requireAgreement(const char* call, Communicator& comm, std::initializer_list<NamedValue> values,
                      const MeshGroup& group, const char* name, const std::vector<size_t>& array) {
  const std::vector<int64_t> elements(array.begin(), array.end());
  const NamedValue ofGroup = namedArray(name, elements);
  comm.compareNext(call, std::span(values.begin(), values.size()), group.ranks, {&ofGroup, 1});
}

/// Bytes of each member's block (`each` bytes per element), and their sum.
struct BlockBytes {
  std::vector<size_t> counts;
  size_t own = 0, all = 0;
};

template <typename Count>
BlockBytes blockBytes(const char* call, const char* argument, const Count* counts, const MeshGroup& group,
                      size_t each) {
  requirePointer(call, argument, counts);
  BlockBytes blocks;
  for (size_t m = 0; m < group.ranks.size(); ++m) {
    const auto name = concat(argument, "[", m, "]");
    const size_t bytes = countBytes(call, "a block", {{name.c_str(), counts[m]}, {"bytes", each}});
    blocks.counts.push_back(static_cast<size_t>(counts[m]));
    if (m == static_cast<size_t>(group.position)) blocks.own = bytes;
    blocks.all = addBytes(call, "all blocks", blocks.all, bytes);
  }
  return blocks;
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparMeshReceive(int axis, const seqparMeshPart_t* parts, int count, seqparMesh_t handle,
                                            void* stream) {
  const char* call = "seqparMeshReceive";
  return onMesh(call, handle, [&](const MeshEntry& mesh, Communicator& comm) {
    requireAxis(call, axis);
    requireParts(call, parts, count);
    const auto& group = mesh.group(axis);
    if (group.size() == 1) fail(seqparInvalidUsage, call, ": the group has one rank, expected at least two");
    std::vector<Buffer> in, out;
    MeshShift shift;
    for (const auto& part : std::span(parts, static_cast<size_t>(count))) {
      in.push_back({"parts->send", part.send, part.sendBytes});
      out.push_back({"parts->receive", part.receive, part.receiveBytes});
      requireAll(call, {in.back(), out.back()}, comm);
      shift.add(part.send, part.sendBytes, part.receive, part.receiveBytes);
    }
    requireAllDisjoint(call, out, in);
    const auto on = callerStream(call, stream, comm);
    requireAgreement(call, comm, {{"axis", axis}, {"count", count}});
    auto route = std::make_shared<const Route>(shift.route(group));
    exchangesOf(comm).exchange(comm, call, {std::move(route), std::move(shift.sends), std::move(shift.receives), {}},
                               on);
  });
}

SEQPAR_API seqparResult_t seqparMeshReduceO(int index, const seqparMeshReduceOParams_t* params, seqparMesh_t handle,
                                            void* stream) {
  const char* call = "seqparMeshReduceO";
  return onMesh(call, handle, [&](const MeshEntry& mesh, Communicator& comm) {
    const auto row =
        readVersioned(call, "params", params, seqparMeshReduceOParams_t SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER);
    const auto& group = mesh.group(seqparMeshAxisQ);
    requireIndex(call, index, group);
    const auto types = checkTypes(call, row.dataType, row.wireType);
    if (row.heads < 1 || row.dim < 1) {
      fail(seqparInvalidArgument, call, ": heads is ", row.heads, " and dim is ", row.dim, ", expected at least 1");
    }
    const int64_t carried = index == 0 ? row.tokens : row.carryTokens;
    const int64_t mostCarried = index == 1 ? carried : std::max(carried, row.tokens);
    const bool alone = group.size() == 1;
    const auto outputsOf = [&](const char* name, const void* data, Extent rows, seqparDataType_t type) {
      return Buffer{name, data,
                    countBytes(call, name, {rows, {"heads", row.heads}, {"dim", row.dim}, {"bytes", sizeOf(type)}}),
                    sizeOf(type)};
    };
    const auto logarithmsOf = [&](const char* name, const void* data, Extent rows) {
      return Buffer{name, data, countBytes(call, name, {{"heads", row.heads}, rows, {"bytes", sizeof(float)}}),
                    alignof(float)};
    };
    const Buffer outputs = outputsOf("o", row.o, {"tokens", row.tokens}, types.data);
    const Buffer logarithms = logarithmsOf("lse", row.lse, {"tokens", row.tokens});
    Buffer carryBuffer{"carry", nullptr, 0}, carryLogarithms{"carryLse", nullptr, 0};
    if (!alone) {
      requireAtLeast(call, "carryTokens", carried, 0);
      carryBuffer = outputsOf("carry", row.carry, {"carryTokens", mostCarried}, types.wire);
      carryLogarithms = logarithmsOf("carryLse", row.carryLse, {"carryTokens", mostCarried});
    }
    requireAll(call, {outputs, logarithms, carryBuffer, carryLogarithms}, comm);
    const Buffer all[] = {outputs, logarithms, carryBuffer, carryLogarithms};
    requireAllDisjoint(call, all, {});
    const auto on = callerStream(call, stream, comm);
    requireAgreement(call, comm,
                     {{"index", index},
                      {"heads", row.heads},
                      {"dim", row.dim},
                      {"dataType", row.dataType},
                      {"wireType", row.wireType}});
    if (alone) return;

    OutputStep step{{group, index, types}, row.o, row.lse, row.carry, row.carryLse, {}, static_cast<size_t>(carried)};
    step.shape = {static_cast<size_t>(row.tokens), static_cast<size_t>(row.heads), static_cast<size_t>(row.dim)};
    meshBackendOf(comm).reduceOutputs(comm, call, std::move(step), on);
  });
}

SEQPAR_API seqparResult_t seqparMeshReduceSum(int axis, int index, const seqparMeshSum_t* parts, int count,
                                              int dataType, int wireType, seqparMesh_t handle, void* stream) {
  const char* call = "seqparMeshReduceSum";
  return onMesh(call, handle, [&](const MeshEntry& mesh, Communicator& comm) {
    requireAxis(call, axis);
    requireParts(call, parts, count);
    const auto& group = mesh.group(axis);
    requireIndex(call, index, group);
    const auto types = checkTypes(call, dataType, wireType);
    SumStep step{{group, index, types}, {parts, parts + count}};
    const bool alone = group.size() == 1;
    const auto bytes = [&](const char* what, size_t numbers, seqparDataType_t type) {
      return countBytes(call, what, {{"count", numbers}, {"bytes", sizeOf(type)}});
    };
    std::vector<Buffer> all;
    for (auto& part : step.parts) {
      if (index == 0) part.carryCount = part.count;
      all.push_back({"parts->data", part.data, bytes("parts->data", part.count, types.data), sizeOf(types.data)});
      const size_t carried = index == 1 ? part.carryCount : std::max(part.count, part.carryCount);
      all.push_back(
          {"parts->carry", part.carry, alone ? 0 : bytes("parts->carry", carried, types.wire), sizeOf(types.wire)});
      requireAll(call, {all[all.size() - 2], all.back()}, comm);
    }
    requireAllDisjoint(call, all, {});
    const auto on = callerStream(call, stream, comm);
    requireAgreement(
        call, comm,
        {{"axis", axis}, {"index", index}, {"count", count}, {"dataType", dataType}, {"wireType", wireType}});
    if (alone) return;
    meshBackendOf(comm).reduceSums(comm, call, std::move(step), on);
  });
}

SEQPAR_API seqparResult_t seqparMeshAllGather(int axis, const void* send, void* receive, const size_t* bytes,
                                              seqparMesh_t handle, void* stream) {
  const char* call = "seqparMeshAllGather";
  return onMesh(call, handle, [&](const MeshEntry& mesh, Communicator& comm) {
    requireAxis(call, axis);
    const auto& group = mesh.group(axis);
    const auto self = static_cast<size_t>(group.position);
    const auto blocks = blockBytes(call, "bytes", bytes, group, 1);
    const Buffer in{"send", send, blocks.own};
    const Buffer out{"receive", receive, blocks.all};
    requireAll(call, {in, out}, comm);
    const Shards shards = groupShards(group, blocks.counts, 1);
    Route route = gatherRoute(shards, self);
    if (blocks.own > 0 && send == static_cast<std::byte*>(receive) + shards.first(self)) {
      const auto toSelf = [&](const Transfer& transfer) { return transfer.peer == comm.rank(); };
      std::erase_if(route.sends, toSelf);
      std::erase_if(route.receives, toSelf);
    } else {
      requireDisjoint(call, in, out, false);
    }
    const auto on = callerStream(call, stream, comm);
    requireAgreement(call, comm, {{"axis", axis}}, group, "bytes", blocks.counts);
    exchangesOf(comm).exchange(comm, call,
                               {std::make_shared<const Route>(std::move(route)),
                                {static_cast<const std::byte*>(send)},
                                {static_cast<std::byte*>(receive)},
                                {}},
                               on);
  });
}

SEQPAR_API seqparResult_t seqparMeshReduceScatter(int axis, const void* send, void* receive, const size_t* counts,
                                                  int dataType, seqparMesh_t handle, void* stream) {
  const char* call = "seqparMeshReduceScatter";
  return onMesh(call, handle, [&](const MeshEntry& mesh, Communicator& comm) {
    requireAxis(call, axis);
    const auto type = typeOf(call, "dataType", dataType);
    const auto& group = mesh.group(axis);
    const auto blocks = blockBytes(call, "counts", counts, group, sizeOf(type));
    const Buffer in{"send", send, blocks.all, sizeOf(type)};
    const Buffer out{"receive", receive, blocks.own, sizeOf(type)};
    requireAll(call, {in, out}, comm);
    requireDisjoint(call, out, in, false);
    const auto on = callerStream(call, stream, comm);
    requireAgreement(call, comm, {{"axis", axis}, {"dataType", dataType}}, group, "counts", blocks.counts);
    const auto shards = groupShards(group, blocks.counts, sizeOf(type));
    auto reduction = std::make_shared<const Reduction>(scatterSum(shards, static_cast<size_t>(group.position)));
    exchangesOf(comm).reduce(
        comm, call,
        {std::move(reduction), type, {static_cast<const std::byte*>(send)}, {static_cast<std::byte*>(receive)}}, on);
  });
}

SEQPAR_API seqparResult_t seqparMeshReduceScatterO(const seqparMeshReduceScatterOParams_t* params, seqparMesh_t handle,
                                                   void* stream) {
  const char* call = "seqparMeshReduceScatterO";
  return onMesh(call, handle, [&](const MeshEntry& mesh, Communicator& comm) {
    const auto given = readVersioned(call, "params", params,
                                     seqparMeshReduceScatterOParams_t SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER);
    const auto type = typeOf(call, "dataType", given.dataType);
    const auto& group = mesh.group(seqparMeshAxisQ);
    const size_t each = sizeOf(type);
    const size_t rowBytes = countBytes(call, "a token", {{"heads", given.heads}, {"dim", given.dim}, {"bytes", each}});
    const size_t lseBytes = countBytes(call, "a token's lse", {{"heads", given.heads}, {"bytes", sizeof(float)}});
    const auto outputs = blockBytes(call, "tokens", given.tokens, group, rowBytes);
    const auto logarithms = blockBytes(call, "tokens", given.tokens, group, lseBytes);
    const Buffer in[] = {{"o", given.o, outputs.all, each}, {"lse", given.lse, logarithms.all, alignof(float)}};
    const Buffer out[] = {{"result", given.result, outputs.own, each},
                          {"resultLse", given.resultLse, logarithms.own, alignof(float)}};
    requireAll(call, {in[0], in[1], out[0], out[1]}, comm);
    requireAllDisjoint(call, out, in);
    const auto on = callerStream(call, stream, comm);
    requireAgreement(call, comm, {{"heads", given.heads}, {"dim", given.dim}, {"dataType", given.dataType}}, group,
                     "params->tokens", outputs.counts);
    if (rowBytes == 0) return;
    LseReduction reduction;
    reduction.shards = {groupShards(group, outputs.counts, rowBytes), static_cast<size_t>(given.heads), type};
    reduction.member = static_cast<size_t>(group.position);
    reduction.out = static_cast<const std::byte*>(given.o);
    reduction.lse = given.lse;
    reduction.outShard = static_cast<std::byte*>(given.result);
    reduction.lseShard = given.resultLse;
    exchangesOf(comm).reduceLse(comm, call, std::move(reduction), on);
  });
}

}  // extern "C"
