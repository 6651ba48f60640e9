// The choice between the implementations of Exec.
#include <sched.h>

#include <algorithm>

#include "attn/boundary.h"
#include "attn/exec/host.h"
#ifdef SEQPAR_ATTN_CUDA
#include "attn/exec/cuda.h"
#endif

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention plan";

/// The rank's share of the processors, of which a caller may have lost some since the communicator was created.
int shareOfCores(seqparComm_t comm) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int cores = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  if (comm == nullptr) return std::max(1, cores);
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(comm, &info), kCaller, comm);
  return std::clamp(info.threads, 1, std::max(1, cores));
}

}  // namespace

std::unique_ptr<Exec> makeExec(seqparComm_t comm, int threads) {
  int device = SEQPAR_HOST_DEVICE;
  if (comm != nullptr) require(seqparCommDevice(comm, &device), kCaller, nullptr);
  if (device == SEQPAR_HOST_DEVICE) return std::make_unique<HostExec>(threads > 0 ? threads : shareOfCores(comm), comm);
#ifdef SEQPAR_ATTN_CUDA
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(comm, &info), kCaller, comm);
  return std::make_unique<CudaExec>(device, info.sharing > 1, info.rank);
#else
  fail(seqparInvalidUsage, kCaller, ": the communicator is of device ", device,
       ", expected host memory: this library was built without CUDA");
#endif
}

}  // namespace seqpar::attn
