#include "mesh/backend.h"

namespace seqpar {

// `if constexpr` discards the branch of a backend that this build omits, so its functions need no definition.
const MeshBackend& meshBackendOf(const Communicator& comm) {
  if constexpr (SEQPAR_HAS_CUDA) {
    if (comm.device() != nullptr) return deviceMeshes();
  }
  return hostMeshes();
}

}  // namespace seqpar
