// gpu_ring_overlap: rings that copy engines move, concurrent with kernels that read the tensors: all forms, late ranks,
// graphs, tens of thousands of steps, a killed rank and an absent one. Exit status 77: no GPU.
#include <cstring>
#include <thread>

#include "common/timeouts.h"
#include "gpu/support/device_backend.h"
#include "gpu/support/processes.h"
#include "seqpar/ring.h"

using namespace seqpar::test;

namespace {

constexpr char kEngine[] = "copy engines, no SM";
constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr int kBlocks = 16, kThreads = 256;

__host__ __device__ unsigned keyOf(int round, int rank, int tensor) {
  return static_cast<unsigned>((round * 64 + rank) * 8 + tensor) * 2654435761U;
}
__device__ unsigned char byteOf(unsigned key, std::size_t i) {
  return static_cast<unsigned char>((key ^ static_cast<unsigned>(i) * 2246822519U) >> 13);
}

__global__ void fill(unsigned char* bytes, std::size_t count, unsigned key) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    bytes[i] = byteOf(key, i);
  }
}
__global__ void addOne(unsigned char* bytes, std::size_t count) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) ++bytes[i];
}
/// Counts the bytes that differ from fill() followed by `added` times addOne().
__global__ void compare(const unsigned char* bytes, std::size_t count, unsigned key, int added, unsigned* wrong) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    if (bytes[i] != static_cast<unsigned char>(byteOf(key, i) + added)) atomicAdd(wrong, 1U);
  }
}
/// Keeps the stream busy.
__global__ void linger(long long ns) {
  long long begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

/// Device memory of the process, which is freed with it.
template <typename Value>
Value* deviceMemory(std::size_t count) {
  void* memory = nullptr;
  expectCuda(cudaMalloc(&memory, count * sizeof(Value)), "cudaMalloc");
  expectCuda(cudaMemset(memory, 0, count * sizeof(Value)), "cudaMemset");
  return static_cast<Value*>(memory);
}

struct Form {
  int inner = 0;
  bool changed = false, keepHome = false, givesHome = false;
  int steps = 0;
  std::vector<std::size_t> bytes;  ///< [place][tensor]
  int tensors = 1;
};

struct Rank {
  seqparComm_t comm;
  int rank, ranks;
  cudaStream_t stream;
  unsigned* wrong;  ///< device memory

  void expectRight(const char* what) const {
    unsigned count = 0;
    expectCuda(cudaMemcpyAsync(&count, wrong, sizeof(count), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    expectCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    seqparResult_t state = seqparSuccess;
    expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError", comm);
    expect(state == seqparSuccess, what, ": ", seqparGetLastError(comm));
    expect(count == 0, what, ": ", count, " bytes are wrong");
  }
};

/// A ring over all ranks, which must be one of copy engines.
class OpenRing {
 public:
  OpenRing(const Rank& self, const Form& form) : self_(self), form_(form) {
    seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
    params.inner = form.inner;
    params.unchanged = form.changed ? 0 : 1;
    params.keepHome = form.keepHome ? 1 : 0;
    params.steps = form.steps;
    params.tensors = form.tensors;
    params.bytes = form.bytes.data();
    params.uneven = 1;
    std::vector<void*> home;
    for (int i = 0; form.givesHome && i < form.tensors; ++i) home.push_back(deviceMemory<char>(mostBytes(i)));
    if (form.givesHome) params.home = home.data();
    expectSuccess(seqparRingCreate(&ring_, &params, self.comm), "seqparRingCreate", self.comm);
    expect(std::strcmp(info().engine, kEngine) == 0, "the engine is ", info().engine);
  }

  seqparResult_t post() { return seqparRingPost(ring_, self_.stream); }
  seqparResult_t wait() { return seqparRingWait(ring_, self_.stream); }
  void reset() { expectSuccess(seqparRingReset(ring_), "seqparRingReset", self_.comm); }
  void close() { expectSuccess(seqparRingDestroy(ring_), "seqparRingDestroy"); }

  void fillHome(int round) {
    eachTensor([&](int tensor, unsigned char* at, std::size_t bytes) {
      fill<<<kBlocks, kThreads, 0, self_.stream>>>(at, bytes, keyOf(round, self_.rank, tensor));
    });
  }
  void change() {
    eachTensor(
        [&](int, unsigned char* at, std::size_t bytes) { addOne<<<kBlocks, kThreads, 0, self_.stream>>>(at, bytes); });
  }
  void check(int round, int added) {
    const int source = info().source;
    eachTensor([&](int tensor, unsigned char* at, std::size_t bytes) {
      expect(bytes == bytesOf(source, tensor), "tensor ", tensor, " of rank ", source, " has ", bytes, " bytes");
      compare<<<kBlocks, kThreads, 0, self_.stream>>>(at, bytes, keyOf(round, source, tensor), added, self_.wrong);
    });
  }

  int steps() const { return form_.steps == 0 ? self_.ranks - 1 : form_.steps; }

  void round(int number) { round(number, steps()); }
  /// The first `steps` of a round; one rank a step lingers over its tensors, and the others run ahead.
  void round(int number, int steps) {
    reset();
    fillHome(number);
    for (int step = 0; step <= steps; ++step) {
      if (form_.changed) change();
      if (step < steps) expectSuccess(post(), "seqparRingPost", self_.comm);
      if ((self_.rank + step) % self_.ranks == 0) linger<<<1, 1, 0, self_.stream>>>(1000000);
      check(number, form_.changed ? step + 1 : 0);
      if (step < steps) expectSuccess(wait(), "seqparRingWait", self_.comm);
    }
  }

 private:
  std::size_t bytesOf(int place, int tensor) const {
    return form_.bytes[static_cast<std::size_t>(place * form_.tensors + tensor)];
  }
  std::size_t mostBytes(int tensor) const {
    std::size_t most = 1;
    for (int place = 0; place < self_.ranks; ++place) most = std::max(most, bytesOf(place, tensor));
    return most;
  }
  seqparRingInfo_t info() const {
    seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
    expectSuccess(seqparRingQuery(ring_, &info), "seqparRingQuery", self_.comm);
    return info;
  }
  template <typename Body>
  void eachTensor(Body body) {
    for (int tensor = 0; tensor < form_.tensors; ++tensor) {
      void* at = nullptr;
      std::size_t bytes = 0;
      expectSuccess(seqparRingCurrent(ring_, tensor, &at, &bytes), "seqparRingCurrent", self_.comm);
      if (bytes > 0) body(tensor, static_cast<unsigned char*>(at), bytes);
    }
  }

  const Rank& self_;
  Form form_;
  seqparRing_t ring_ = nullptr;
};

Form fastForm(int ranks) {
  Form form;
  form.bytes.assign(static_cast<std::size_t>(ranks), kLarge);
  return form;
}

/// Tensors with different lengths on all ranks, including empty ones and ranks with only empty ones.
Form unevenForm(int ranks) {
  Form form;
  form.tensors = 3;
  for (int place = 0; place < ranks; ++place) {
    const auto number = static_cast<std::size_t>(place);
    const bool none = place == 1 && ranks > 2;
    form.bytes.push_back(none ? 0 : 3 * kLarge + 4099 * number);
    form.bytes.push_back(none ? 0 : place % 2 == 0 ? 0 : 70001);
    form.bytes.push_back(none ? 0 : 513 + number);
  }
  return form;
}

void runForms(const Rank& self) {
  for (int inner = 1; inner <= self.ranks; ++inner) {
    if (self.ranks % inner != 0) continue;
    for (int kind = 0; kind < 8; ++kind) {
      Form form = unevenForm(self.ranks);
      form.inner = inner;
      form.changed = kind >= 4;
      form.keepHome = kind % 2 == 1;
      form.givesHome = kind % 4 >= 2;
      form.steps = kind < 4 ? self.ranks : 0;
      OpenRing ring(self, form);
      for (int round = 0; round < 4; ++round) ring.round(round, round == 2 ? ring.steps() / 2 : ring.steps());
      ring.close();
    }
  }
  self.expectRight("forms");
}

/// A replayed round, with rounds as usual before and after it.
void runGraph(const Rank& self) {
  OpenRing ring(self, unevenForm(self.ranks));
  ring.round(0);
  expectCuda(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  ring.round(1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaStreamEndCapture(self.stream, &graph), "cudaStreamEndCapture");
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 5; ++i) expectCuda(cudaGraphLaunch(ready, self.stream), "cudaGraphLaunch");
  ring.round(2);
  self.expectRight("graphs");
  ring.close();
  expectCuda(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

/// More steps than there are distinct stamps.
void runLong(const Rank& self) {
  constexpr int kRounds = 10000;
  Form form = fastForm(self.ranks);
  form.steps = 1;
  OpenRing ring(self, form);
  for (int round = 0; round < kRounds; ++round) {
    ring.reset();
    const bool polls = round % 1000 == 0 || round > kRounds - 500;
    if (polls) ring.fillHome(round);
    expectSuccess(ring.post(), "seqparRingPost", self.comm);
    expectSuccess(ring.wait(), "seqparRingWait", self.comm);
    if (polls) ring.check(round, 0);
  }
  self.expectRight("many steps");
  ring.close();
}

/// Posts until the communicator has failed, then ends the ring and the communicator. Returns the failure's text.
std::string runUntilFailure(const Rank& self) {
  OpenRing ring(self, fastForm(self.ranks));
  seqparResult_t result = seqparSuccess, state = seqparSuccess;
  while (result == seqparSuccess && state == seqparSuccess) {
    ring.reset();
    for (int step = 1; step < self.ranks && result == seqparSuccess; ++step) {
      result = ring.post();
      if (result == seqparSuccess) result = ring.wait();
    }
    expectCuda(cudaStreamSynchronize(self.stream), "cudaStreamSynchronize");
    expectSuccess(seqparCommGetAsyncError(self.comm, &state), "seqparCommGetAsyncError", self.comm);
  }
  expectSuccess(seqparCommGetAsyncError(self.comm, &state), "seqparCommGetAsyncError", self.comm);
  expect(state == seqparRemoteError, "the state is ", seqparGetErrorString(state), ", expected a remote error");
  const std::string text = seqparGetLastError(self.comm);
  expectCuda(cudaStreamSynchronize(self.stream), "cudaStreamSynchronize");
  ring.close();
  expectSuccess(seqparCommAbort(self.comm), "seqparCommAbort");
  return text;
}

Rank join(const seqparUniqueId& id, int rank, int ranks, int timeoutMs) {
  const int gpus = requireGpus(1);
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.device = rank % gpus;
  config.timeoutMs = timeoutMs;
  expectCuda(cudaSetDevice(config.device), "cudaSetDevice");
  Rank self{nullptr, rank, ranks, nullptr, nullptr};
  expectCuda(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  self.wrong = deviceMemory<unsigned>(1);
  expectSuccess(seqparCommInitRankConfig(&self.comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
  return self;
}

int runWorking(int rank, int ranks, const Ids& ids) {
  const Rank self = join(ids[0], rank, ranks, patienceMs(20000));
  runForms(self);
  if (ranks <= requireGpus(1)) runGraph(self);  // ranks that share a GPU must not capture
  if (ranks == 2) runLong(self);
  expectSuccess(seqparCommDestroy(self.comm), "seqparCommDestroy");
  return 0;
}

/// The last rank never posts; of the next communicator it is killed while it does.
int runFailing(int rank, int ranks, const Ids& ids) {
  const int timeoutMs = patienceMs(1500);
  const int victim = ranks - 1;
  const Rank self = join(ids[0], rank, ranks, timeoutMs);
  if (rank == victim) {
    OpenRing ring(self, fastForm(ranks));
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * timeoutMs));
    ring.close();
    expectSuccess(seqparCommAbort(self.comm), "seqparCommAbort");
  } else {
    const std::string text = runUntilFailure(self);
    expect(text.find("for rank " + std::to_string(victim)) != std::string::npos, "a rank that never came: ", text);
  }
  const Rank again = join(ids[1], rank, ranks, kNoTimeoutMs);
  if (rank == victim) {
    OpenRing ring(again, fastForm(ranks));
    for (int round = 0; round < 200; ++round) ring.round(round);
    ring.reset();
    expectSuccess(ring.post(), "seqparRingPost", again.comm);
    kill(getpid(), SIGKILL);
  }
  std::printf("rank %d: %s\n", rank, runUntilFailure(again).c_str());
  return 0;
}

}  // namespace

int main() {
  setenv("SEQPAR_RING_ENGINE", "copy", 1);
  int worst = 0;
  for (const int ranks : {2, 3, 4}) {
    worst = std::max(
        worst, onProcesses(ranks, 120, {}, [&](int rank, const Ids& ids) { return runWorking(rank, ranks, ids); }));
    std::printf("%d ranks: %s\n", ranks, worst == 0 ? "all right" : "ended with an error");
    if (worst == kSkipped) return kSkipped;
  }
  constexpr int kRanks = 3;
  const int failing =
      onProcesses(kRanks, 120, kRanks - 1, [&](int rank, const Ids& ids) { return runFailing(rank, kRanks, ids); });
  std::printf("failures: %s\n", failing == 0 ? "all right" : "ended with an error");
  return std::max(worst, failing) == 0 ? 0 : 1;
}
