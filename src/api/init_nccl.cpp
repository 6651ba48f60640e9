// A communicator over the caller's NCCL communicator.
#include "api/boundary.h"
#include "comm/config.h"
#ifdef SEQPAR_NCCL
#include "device/nccl_bootstrap.h"
#endif

using namespace seqpar;

namespace {

#ifdef SEQPAR_NCCL
seqparComm_t borrow(void* ncclComm, CommConfig config) {
  const auto ranks = bootstrapThroughNccl(ncclComm, config.timeout, &config.device);
  config.borrowedNccl = ncclComm;
  return comms().add(std::make_shared<CommEntry>(std::make_shared<Communicator>(*ranks, config)));
}
#else
seqparComm_t borrow(void*, const CommConfig&) {
  fail(seqparInvalidUsage, "this library was built without NCCL");
}
#endif

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparCommInitNccl(seqparComm_t* comm, void* ncclComm, const seqparConfig_t* config) {
  const char* call = "seqparCommInitNccl";
  return atBoundary(call, [&] {
    requirePointer(call, "comm", comm);
    *comm = nullptr;
    requirePointer(call, "ncclComm", ncclComm);
    *comm = borrow(ncclComm, resolveConfig(call, config));
  });
}

}  // extern "C"
