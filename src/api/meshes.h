// Meshes of the C interface.
#pragma once

#include <array>
#include <memory>

#include "api/boundary.h"
#include "mesh/schedule.h"

namespace seqpar {

/// A mesh with the communicator's entry, which keeps the entry's address from being reused.
struct MeshEntry {
  seqparComm_t comm = nullptr;
  std::shared_ptr<CommEntry> entry;
  MeshShape shape;
  std::array<MeshGroup, 2> groups;        ///< by seqparMeshAxis_t
  std::array<MeshSchedule, 2> schedules;  ///< by seqparMeshPass_t
  std::array<MeshCosts, 2> costs;         ///< by seqparMeshPass_t

  const MeshGroup& group(int axis) const { return groups[static_cast<size_t>(axis)]; }
};

HandleTable<MeshEntry, seqparMesh_t>& meshes();

/// The mesh of a handle; InvalidArgument in the name of `call` if the handle is not valid.
inline std::shared_ptr<MeshEntry> findMesh(const char* call, seqparMesh_t handle) {
  return require(meshes(), handle, call, "mesh", "mesh");
}

/// atBoundary() for a call on a mesh: body(const MeshEntry&). Its error also becomes the communicator's latest one.
template <typename Body>
seqparResult_t atMesh(const char* call, seqparMesh_t handle, Body&& body) noexcept {
  std::shared_ptr<MeshEntry> mesh;
  const auto result = atBoundary(call, [&] {
    mesh = findMesh(call, handle);
    std::forward<Body>(body)(std::as_const(*mesh));
  });
  if (result != seqparSuccess && mesh) keepError(mesh->comm);
  return result;
}

/// Throws InvalidArgument unless `axis` is a seqparMeshAxis_t.
void requireAxis(const char* call, int axis);

}  // namespace seqpar
