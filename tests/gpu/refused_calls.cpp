// Refused arguments on GPU communicators: the host tests of sizes that wrap and of misaligned buffers, which on a GPU
// would destroy its context; and errors of calls that other ranks never make. With more ranks than GPUs, several share
// one. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include "unit/api/refused_calls.h"

#include "gpu/support/device_backend.h"
#include "seqpar/exchange.h"
#include "seqpar/scan.h"

using namespace seqpar::test;  // NOLINT(google-build-using-namespace)

namespace {

// With a timeout, calls are meant to fail: Destroy then returns the error of the rank that waited.
std::string onGpus(int gpus, int ranks, const std::function<void(seqparComm_t, int)>& body, int timeoutMs = 0) {
  DeviceBackend device(ranks, ranks > gpus);
  Backend* const before = std::exchange(backend(), &device);
  seqparUniqueId id;
  expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
  auto errors = onThreads(ranks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.device = rank % gpus;
    config.timeoutMs = timeoutMs == 0 ? patienceMs(20000) : timeoutMs;
    config.ctas = 16;
    expectCuda(cudaSetDevice(config.device), "cudaSetDevice");
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    body(comm, rank);
    device.barrier();
    const auto destroyed = seqparCommDestroy(comm);
    if (timeoutMs == 0) expectSuccess(destroyed, "seqparCommDestroy");
  });
  backend() = before;
  return errors;
}

TEST_CASE("capture: ranks that share a GPU refuse it") {
  int gpus = 0;
  expectCuda(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  const int ranks = gpus + 1;
  const auto errors = ranksOnDevices()(ranks, [&](seqparComm_t comm, int rank) {
    const Vector<float> mine(1, 1.0F);
    Vector<float> remote(1, -1.0F);
    cudaStream_t stream = nullptr;
    expectCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    expectCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    const auto result = seqparSendRecv(mine.data(), sizeof(float), (rank + 1) % ranks, remote.data(), sizeof(float),
                                       (rank + ranks - 1) % ranks, comm, stream);
    const std::string text = seqparGetLastError(comm);
    cudaGraph_t graph = nullptr;
    expectCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    expectCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    expect(result == seqparInvalidUsage, "result ", result, ": ", text);
    const std::string expected = "ranks 0 and " + std::to_string(gpus) + " share device 0 in one process";
    expect(text.find(expected) != std::string::npos, "the text is: ", text);
    expectAlive(comm, rank, ranks);
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("a stream that waited in vain has an error as soon as it is synchronized") {
  int gpus = 0;
  expectCuda(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  const auto body = [](seqparComm_t comm, int rank) {
    if (rank == 1) return;  // never calls
    const Vector<float> mine(1, 1.0F);
    Vector<float> remote(1, -1.0F);
    cudaStream_t stream = nullptr;
    expectCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    expectSuccess(seqparSendRecv(mine.data(), sizeof(float), 1, remote.data(), sizeof(float), 1, comm, stream),
                  "seqparSendRecv", comm);
    expectCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    seqparResult_t state = seqparSuccess;
    expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError", comm);
    expect(state == seqparRemoteError, "the error is ", seqparGetErrorString(state));
    expectCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
  };
  for (int turn = 0; turn < 3; ++turn) {
    const auto errors = onGpus(std::min(gpus, 2), 2, body, patienceMs(1000));
    INFO(errors);
    CHECK(errors.empty());
  }
}

TEST_CASE("ranks that issue different calls get an error long before the timeout") {
  int gpus = 0;
  expectCuda(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  const bool fits = GENERATE(false, true);  // messages of other calls: the results would be wrong
  const auto body = [&](seqparComm_t comm, int rank) {
    const Vector<float> mine(4, 1.0F);
    Vector<float> all(8, -1.0F);
    cudaStream_t stream = nullptr;  // the default stream is one for all ranks that share a GPU
    expectCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.outer = 1;
    shards.inner = 1;
    shards.tokens = 4;
    const auto gather = [&](seqparDataType_t type) {
      shards.dataType = type;
      shards.inner = type == seqparFloat32 ? 1 : 2;
      return seqparAllGather(mine.data(), all.data(), &shards, comm, stream);
    };
    for (int i = 0; i < 3; ++i) expectSuccess(gather(seqparFloat32), "seqparAllGather", comm);
    expectCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    seqparAllScanParams_t scan = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    scan.op = seqparScanSum;
    scan.heads = scan.dk = 1;
    scan.dv = 4;
    const auto differs = fits ? gather(rank == 0 ? seqparFloat32 : seqparFloat16)
                         : rank == 0
                             ? gather(seqparFloat32)
                             : seqparAllScan(mine.data(), nullptr, nullptr, nullptr, all.data(), &scan, comm, stream);
    expectSuccess(differs, "the call that differs", comm);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(patienceMs(5000));
    seqparResult_t state = seqparSuccess;
    while (state == seqparSuccess && std::chrono::steady_clock::now() < until) {
      expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError", comm);
    }
    expect(state == seqparRemoteError, "the error is ", seqparGetErrorString(state));
    const auto later = gather(seqparFloat32);
    const std::string text = seqparGetLastError(comm);
    expect(later == seqparRemoteError && text.find("the first is number 4") != std::string::npos,
           "the text is: ", text);
    expectCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
  };
  const auto errors = onGpus(std::min(gpus, 2), 2, body, patienceMs(60000));
  INFO(errors);
  CHECK(errors.empty());
}

}  // namespace

int main(int argc, char** argv) {
  const int gpus = requireGpus(1);
  ranksOnDevices() = [gpus](int ranks, const std::function<void(seqparComm_t, int)>& body) {
    return onGpus(gpus, ranks, body);
  };
  return Catch::Session().run(argc, argv);
}
