// gpu_ring_bench: a shift to the next rank, each GPU a rank: the ring's engines, cudaMemcpyPeerAsync alone, NCCL.
// Times are of one step, of the slowest rank, the median of several loops. Exit status 77 with fewer than two GPUs.
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <vector>

#include "gpu/support/device_backend.h"
#include "seqpar/ring.h"

using namespace seqpar::test;

namespace {

constexpr int kSteps = 100, kLoops = 7;

/// Ranks' times are compared where all stand still.
class Meeting {
 public:
  explicit Meeting(int ranks) : times_(static_cast<std::size_t>(ranks)), barrier_(ranks) {}
  void meet() { barrier_.arrive_and_wait(); }
  float slowest(int rank, float mine) {
    times_[static_cast<std::size_t>(rank)] = mine;
    meet();
    const float most = *std::max_element(times_.begin(), times_.end());
    meet();
    return most;
  }

 private:
  std::vector<float> times_;
  std::barrier<> barrier_;
};

struct Rank {
  int rank, ranks;
  Meeting& meeting;
  seqparComm_t comm;
  cudaStream_t stream;

  int next() const { return (rank + 1) % ranks; }
  int previous() const { return (rank + ranks - 1) % ranks; }
};

/// Microseconds of one step; `steps` enqueues kSteps of them.
float measure(Rank& self, const std::function<void()>& steps) {
  cudaEvent_t begin = nullptr, end = nullptr;
  expectCuda(cudaEventCreate(&begin), "cudaEventCreate");
  expectCuda(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int loop = 0; loop <= kLoops; ++loop) {
    self.meeting.meet();
    expectCuda(cudaEventRecord(begin, self.stream), "cudaEventRecord");
    steps();
    expectCuda(cudaEventRecord(end, self.stream), "cudaEventRecord");
    expectCuda(cudaStreamSynchronize(self.stream), "cudaStreamSynchronize");
    float ms = 0;
    expectCuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    const float slowest = self.meeting.slowest(self.rank, ms);
    if (loop > 0) times.push_back(slowest);
  }
  expectCuda(cudaEventDestroy(begin), "cudaEventDestroy");
  expectCuda(cudaEventDestroy(end), "cudaEventDestroy");
  std::nth_element(times.begin(), times.begin() + kLoops / 2, times.end());
  return times[kLoops / 2] * 1000 / kSteps;
}

void print(const Rank& self, const char* what, std::size_t bytes, float us) {
  if (self.rank != 0) return;
  std::printf("%-24s %4zu MiB %9.2f us %8.1f GB/s\n", what, bytes >> 20, static_cast<double>(us),
              static_cast<double>(bytes) / static_cast<double>(us) / 1000);
}

struct DeviceBytes {
  explicit DeviceBytes(std::size_t bytes) { expectCuda(cudaMalloc(&at, bytes), "cudaMalloc"); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(at); }
  void* at = nullptr;
};

/// Own buffers: copy engines; the caller's: kernels.
void ringOf(Rank& self, std::size_t bytes, bool own) {
  const DeviceBytes a(bytes), b(bytes);
  void* const home[] = {a.at};
  void* const scratch[] = {b.at};
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  params.steps = self.ranks;
  params.tensors = 1;
  params.bytes = &bytes;
  if (!own) params.home = home;
  if (!own) params.scratch = scratch;
  seqparRing_t ring = nullptr;
  expectSuccess(seqparRingCreate(&ring, &params, self.comm), "seqparRingCreate", self.comm);
  const float us = measure(self, [&] {
    for (int step = 0; step < kSteps; ++step) {
      if (step % self.ranks == 0) expectSuccess(seqparRingReset(ring), "seqparRingReset", self.comm);
      expectSuccess(seqparRingPost(ring, self.stream), "seqparRingPost", self.comm);
      expectSuccess(seqparRingWait(ring, self.stream), "seqparRingWait", self.comm);
    }
  });
  seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
  expectSuccess(seqparRingQuery(ring, &info), "seqparRingQuery", self.comm);
  print(self, std::string(info.engine).substr(0, 24).c_str(), bytes, us);
  expectSuccess(seqparRingDestroy(ring), "seqparRingDestroy");
}

void peerCopy(Rank& self, std::size_t bytes, std::vector<void*>& inboxes) {
  const DeviceBytes from(bytes), into(bytes);
  inboxes[static_cast<std::size_t>(self.rank)] = into.at;
  self.meeting.meet();
  void* const target = inboxes[static_cast<std::size_t>(self.next())];
  const float us = measure(self, [&] {
    for (int step = 0; step < kSteps; ++step) {
      expectCuda(cudaMemcpyPeerAsync(target, self.next(), from.at, self.rank, bytes, self.stream),
                 "cudaMemcpyPeerAsync");
    }
  });
  print(self, "cudaMemcpyPeerAsync", bytes, us);
  self.meeting.meet();
}

/// The functions of NCCL that are measured.
struct Nccl {
  template <typename Function>
  static Function* find(const char* name) {
    static void* const library = dlopen("libnccl.so.2", RTLD_NOW);
    return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
  }
  decltype(&ncclGetUniqueId) getUniqueId = find<decltype(ncclGetUniqueId)>("ncclGetUniqueId");
  decltype(&ncclCommInitRank) init = find<decltype(ncclCommInitRank)>("ncclCommInitRank");
  decltype(&ncclCommDestroy) destroy = find<decltype(ncclCommDestroy)>("ncclCommDestroy");
  decltype(&ncclGroupStart) groupStart = find<decltype(ncclGroupStart)>("ncclGroupStart");
  decltype(&ncclGroupEnd) groupEnd = find<decltype(ncclGroupEnd)>("ncclGroupEnd");
  decltype(&ncclSend) send = find<decltype(ncclSend)>("ncclSend");
  decltype(&ncclRecv) recv = find<decltype(ncclRecv)>("ncclRecv");
};

void sendReceive(Rank& self, std::size_t bytes, const Nccl& nccl, ncclComm_t comm) {
  const DeviceBytes from(bytes), into(bytes);
  const float us = measure(self, [&] {
    for (int step = 0; step < kSteps; ++step) {
      nccl.groupStart();
      nccl.send(from.at, bytes, ncclInt8, self.next(), comm, self.stream);
      nccl.recv(into.at, bytes, ncclInt8, self.previous(), comm, self.stream);
      expect(nccl.groupEnd() == ncclSuccess, "ncclGroupEnd failed");
    }
  });
  print(self, "ncclSend/ncclRecv", bytes, us);
}

}  // namespace

int main() {
  setenv("SEQPAR_RING_ENGINE", "copy", 1);
  const int ranks = requireGpus(2);
  const Nccl nccl;
  ncclUniqueId ncclId{};
  if (nccl.getUniqueId != nullptr) nccl.getUniqueId(&ncclId);
  seqparUniqueId id{};
  expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
  Meeting meeting(ranks);
  std::vector<void*> inboxes(static_cast<std::size_t>(ranks));
  const auto errors = onThreads(ranks, [&](int rank) {
    expectCuda(cudaSetDevice(rank), "cudaSetDevice");
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.device = rank;
    Rank self{rank, ranks, meeting, nullptr, nullptr};
    expectSuccess(seqparCommInitRankConfig(&self.comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    expectCuda(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    ncclComm_t ncclComm = nullptr;
    if (nccl.init != nullptr) {
      expect(nccl.init(&ncclComm, ranks, ncclId, rank) == ncclSuccess, "ncclCommInitRank failed");
    }
    constexpr std::size_t kMega = std::size_t{1} << 20;
    for (const std::size_t size : {kMega, 2 * kMega, 4 * kMega, 8 * kMega, 64 * kMega}) {
      peerCopy(self, size, inboxes);
      ringOf(self, size, true);
      ringOf(self, size, false);
      if (ncclComm != nullptr) sendReceive(self, size, nccl, ncclComm);
    }
    if (ncclComm != nullptr) nccl.destroy(ncclComm);
    expectCuda(cudaStreamDestroy(self.stream), "cudaStreamDestroy");
    expectSuccess(seqparCommDestroy(self.comm), "seqparCommDestroy");
  });
  std::printf("%s", errors.c_str());
  return errors.empty() ? 0 : 1;
}
