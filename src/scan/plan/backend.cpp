#include "scan/plan/backend.h"

#include "scan/nccl/backend.h"
#include "scan/peers/backend.h"

namespace seqpar {

// A branch that is absent from a build is discarded, so the functions that it names need not exist.
std::unique_ptr<ScanBackend> makeScanBackend(Communicator& comm) {
  if (comm.device() == nullptr) return makeHostScans(comm);
  if constexpr (SEQPAR_HAS_NCCL) {
    if (!comm.device()->direct()) return makeNcclScans(comm);
  }
  if constexpr (SEQPAR_HAS_CUDA) {
    return makePeerScans(comm);
  } else {
    fail(seqparInternalError, "a communicator on a device in a build without CUDA");
  }
}

}  // namespace seqpar
