// gpu_shared_gpu: two ranks in separate processes on GPU 0. Their communicator must compute, must refuse a call on a
// capturing stream with an error that names the ranks, and must stay usable. Exit status 77 without a GPU.
#include <string>

#include "gpu/support/device_backend.h"
#include "gpu/support/prefix_sums.h"
#include "gpu/support/processes.h"

using namespace seqpar::test;

namespace {

constexpr int kRanks = 2;

void scanAndCheck(PrefixSums& sums, const char* what) {
  for (unsigned i = 0; i < 10; ++i) sums.enqueue(i, 1000, seqparScanAuto, i % 2 == 1);
  sums.check(what);
}

int runRank(int rank, const Ids& ids) {
  requireGpus(1);
  expectCuda(cudaSetDevice(0), "cudaSetDevice");
  DeviceBackend device(1, false, std::size_t{1} << 20);
  backend() = &device;
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.device = 0;
  config.timeoutMs = patienceMs(20000);
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitRankConfig(&comm, kRanks, ids[0], rank, &config), "seqparCommInitRankConfig");
  {
    PrefixSums sums(comm);
    scanAndCheck(sums, "before the capture");
    std::string text;
    cudaGraph_t graph = nullptr;
    expectCuda(cudaStreamBeginCapture(sums.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      sums.enqueue(0, 1000, seqparScanAuto, false);
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    expectCuda(cudaStreamEndCapture(sums.stream(), &graph), "cudaStreamEndCapture");
    expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    expect(text.find("ranks 0 and 1 share a GPU") != std::string::npos, "the text is: ", text);
    scanAndCheck(sums, "after the capture");
    if (rank == 0) std::printf("%s\n", text.c_str());
  }
  expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy", comm);
  return 0;
}

}  // namespace

int main() {
  const int status = onProcesses(kRanks, 60, std::nullopt, runRank);
  std::printf(status == 0 ? "all right\n" : "status %d\n", status);
  return status;
}
