// Ranks as threads of this process with arguments on GPUs. With more ranks than GPUs, several share one.
#pragma once

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/support/device_backend.h"
#include "unit/attn/placement.h"
#include "unit/attn/rank_threads.h"

namespace seqpar::attn::test {

using seqpar::test::expectCuda;

/// A rank's device memory and stream, created once: with several ranks per GPU, nothing may wait for the device in
/// between.
class RankDevice {
 public:
  explicit RankDevice(int device) : device_(device) {
    use();
    expectCuda(seqpar::test::growLocalMemory(), "growing local memory");
    void* memory = nullptr;
    expectCuda(cudaMalloc(&memory, kBytes), "cudaMalloc");
    base_ = static_cast<char*>(memory);
    expectCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;
  ~RankDevice() {
    cudaFree(base_);
    cudaStreamDestroy(stream_);
  }

  void use() const { expectCuda(cudaSetDevice(device_), "cudaSetDevice"); }
  void* allocate(size_t bytes) {
    constexpr size_t kAlignment = 256;
    char* const memory = base_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > kBytes) throw std::runtime_error("the test's device memory is too small");
    return memory;
  }
  void reset() { used_ = 0; }
  void copy(void* to, const void* from, size_t bytes) const {
    if (bytes == 0) return;
    expectCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
    synchronize();
  }
  void synchronize() const { expectCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  cudaStream_t stream() const { return stream_; }

  /// calls() captured and replayed twice.
  std::string replay(const std::function<std::string(void*)>& calls, const std::function<void()>& barrier) const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    expectCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    auto said = calls(stream_);
    expectCuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    if (!said.empty()) return said;
    expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    barrier();
    for (int i = 0; i < 2; ++i) expectCuda(cudaGraphLaunch(ready, stream_), "cudaGraphLaunch");
    synchronize();
    barrier();
    expectCuda(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
    expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return said;
  }

 private:
  static constexpr size_t kBytes = size_t{1} << 29;
  int device_;
  char* base_ = nullptr;
  size_t used_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// The command line of such a program.
struct PlacedRun {
  int gpus = 0, ranks = 1;
  bool graphs = false;
};

/// The main program: NAME RANKS [graph] [Catch's options].
inline int runPlaced(int count, char** words, PlacedRun& run) {
  run.gpus = seqpar::test::requireGpus(1);
  int used = 1;
  if (used < count) run.ranks = std::atoi(words[used++]);
  if (used < count && std::string(words[used]) == "graph") {
    run.graphs = true;
    ++used;
  }
  if (run.ranks < 1) {
    std::printf("usage: %s RANKS [graph] [Catch's options]\n", words[0]);
    return 2;
  }
  if (run.graphs && run.ranks > run.gpus) {
    std::printf("skipped: graphs need a GPU for each of the %d ranks, found %d\n", run.ranks, run.gpus);
    return 77;
  }
  std::printf("%d ranks on %d GPUs%s\n", run.ranks, run.gpus, run.graphs ? ", graphs" : "");
  words[used - 1] = words[0];
  return Catch::Session().run(count - used + 1, words + used - 1);
}

class PlacedRanks {
 public:
  explicit PlacedRanks(const PlacedRun& run) : meeting_(run.ranks) {
    const int gpus = run.gpus, ranks = run.ranks;
    const bool graphs = run.graphs;
    for (int rank = 0; rank < ranks; ++rank) devices_.push_back(std::make_unique<RankDevice>(rank % gpus));
    group_ = std::make_unique<RankThreads>(ranks, [=](int rank) {
      seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
      config.device = rank % gpus;
      config.timeoutMs = seqpar::test::patienceMs(20000);
      const int sharing = (ranks + gpus - 1) / gpus;
      config.ctas = sharing > 1 ? 64 / sharing : SEQPAR_CONFIG_UNDEF_INT;
      return config;
    });
    const auto at = [this](int rank) -> RankDevice& { return *devices_[static_cast<size_t>(rank)]; };
    placement_.allocate = [=](int rank, size_t bytes) { return at(rank).allocate(bytes); };
    placement_.copy = [=](int rank, void* to, const void* from, size_t bytes) {
      at(rank).use();
      at(rank).copy(to, from, bytes);
    };
    placement_.barrier = [this] { meeting_.barrier(); };
    placement_.run = [=, this](int rank, const std::function<std::string(void*)>& calls) {
      at(rank).use();
      if (graphs) return at(rank).replay(calls, placement_.barrier);
      auto said = calls(at(rank).stream());
      at(rank).synchronize();
      return said;
    };
  }

  const RankThreads& group() const { return *group_; }
  /// Starts a new case: frees the previous case's allocations.
  const Placement* placement() {
    for (auto& device : devices_) device->reset();
    return &placement_;
  }

 private:
  seqpar::test::DeviceBackend meeting_;
  std::vector<std::unique_ptr<RankDevice>> devices_;
  std::unique_ptr<RankThreads> group_;
  Placement placement_;
};

}  // namespace seqpar::attn::test
