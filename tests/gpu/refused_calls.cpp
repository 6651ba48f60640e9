// Refused arguments on GPU communicators: the host tests of sizes that wrap and of misaligned buffers, which on a GPU
// would destroy its context. With more ranks than GPUs, several share one. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include "unit/api/refused_calls.h"

#include "gpu/support/device_backend.h"

using namespace seqpar::test;  // NOLINT(google-build-using-namespace)

namespace {

std::string onGpus(int gpus, int ranks, const std::function<void(seqparComm_t, int)>& body) {
  DeviceBackend device(ranks, ranks > gpus);
  Backend* const before = std::exchange(backend(), &device);
  seqparUniqueId id;
  expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
  auto errors = onThreads(ranks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.device = rank % gpus;
    config.timeoutMs = patienceMs(20000);
    config.ctas = 16;
    expectCuda(cudaSetDevice(config.device), "cudaSetDevice");
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    body(comm, rank);
    device.barrier();
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  backend() = before;
  return errors;
}

}  // namespace

int main(int argc, char** argv) {
  const int gpus = requireGpus(1);
  ranksOnDevices() = [gpus](int ranks, const std::function<void(seqparComm_t, int)>& body) {
    return onGpus(gpus, ranks, body);
  };
  return Catch::Session().run(argc, argv);
}
