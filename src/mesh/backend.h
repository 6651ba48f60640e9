// Where a mesh merges and moves blocks: host memory (host_backend.cpp) or GPUs (device_backend.cpp). Only backend.cpp
// knows which backends a build contains.
#pragma once

#include "comm/communicator.h"
#include "mesh/steps.h"

namespace seqpar {

/// Each call is a separate operation, named `call` (a literal) and ordered by `stream`. Stateless.
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

/// The backend for `comm`'s kind of memory.
const MeshBackend& meshBackendOf(const Communicator& comm);

/// Both backends; deviceMeshes() is defined only in builds with CUDA.
const MeshBackend& hostMeshes();
const MeshBackend& deviceMeshes();

}  // namespace seqpar
