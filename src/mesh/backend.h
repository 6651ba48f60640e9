// Where a mesh's merging movements run: on host memory (host_backend.cpp) or on GPUs (device_backend.cpp). Only
// backend.cpp knows which of them a build has.
#pragma once

#include "comm/communicator.h"
#include "mesh/steps.h"

namespace seqpar {

/// Each call is an operation of its own, named `call` (a literal) and in the order of `stream`. Has no state.
class MeshBackend {
 public:
  MeshBackend() = default;
  MeshBackend(const MeshBackend&) = delete;
  MeshBackend& operator=(const MeshBackend&) = delete;
  virtual ~MeshBackend() = default;

  virtual void reduceOutputs(Communicator& comm, const char* call, OutputStep step,
                             const CallerStream& stream) const = 0;
  virtual void reduceSums(Communicator& comm, const char* call, SumStep step, const CallerStream& stream) const = 0;
};

/// The backend of `comm`'s kind of memory.
const MeshBackend& meshBackendOf(const Communicator& comm);

/// The two of them; the second only in builds with CUDA.
const MeshBackend& hostMeshes();
const MeshBackend& deviceMeshes();

}  // namespace seqpar
