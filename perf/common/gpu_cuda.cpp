#include <algorithm>
#include <array>
#include <cstdlib>

#include "cuda.h"
#include "gpu.h"
#include "gpu_kernels.h"
#include "gpu_window.h"
#include "group.h"
#include "names.h"
#include "statistics.h"
#include "timing.h"

namespace seqpar::perf {
namespace {

/// How long a barrier delays the GPU, so that the host can enqueue the work after it.
constexpr uint64_t kHoldNs = 60'000;
constexpr uint32_t kPingPongs = 1000;
constexpr size_t kStoreBytes = size_t{64} << 20;
constexpr int kProbes = 7;

EventHandle makeEvent() {
  cudaEvent_t event = nullptr;
  checkCuda(cudaEventCreate(&event), "cudaEventCreate");
  return EventHandle(event);
}

double usBetween(const EventHandle& start, const EventHandle& end) {
  float ms = 0;
  checkCuda(cudaEventElapsedTime(&ms, start.get(), end.get()), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1e3;
}

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t result = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    checkCuda(result, "cudaGraphInstantiate");
    checkCuda(cudaGraphUpload(executable_, stream), "cudaGraphUpload");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  void launch() override { checkCuda(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaGpu : public Gpu {
 public:
  CudaGpu(Group& group, int device, int sharing) : group_(group), device_(device), sharing_(sharing) {
    cudaStream_t stream = nullptr;
    checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_.reset(stream);
    makeFlags();
    token_ = allocateDevice(2);
  }

  std::string name() const override {
    cudaDeviceProp properties{};
    checkCuda(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties");
    return "device " + std::to_string(device_) + " " + properties.name;
  }
  int sharing() const override { return sharing_; }
  void* stream() const override { return stream_.get(); }

  void synchronize() override {
    checkCuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    seqparResult_t state = seqparSuccess;
    require(seqparCommGetAsyncError(group_.comm(), &state), "seqparCommGetAsyncError", group_.comm());
    require(state, "work on the GPU", group_.comm());
    if (flags_.failed != nullptr && *static_cast<volatile uint32_t*>(flags_.failed) != 0) {
      throw std::runtime_error("a barrier waited in vain for rank " + std::to_string(*flags_.failed - 1));
    }
  }

  void barrier() override {
    if (flagWindow_) return launchBarrier(flags_, 0, stream_.get());
    for (int distance = 1; distance < group_.size(); distance *= 2) pass(distance);
  }

  double elapsedUs(const std::function<void()>& enqueue) override {
    const EventHandle start = makeEvent();
    const EventHandle end = makeEvent();
    begin();
    record(start);
    enqueue();
    record(end);
    synchronize();
    return usBetween(start, end);
  }

  std::vector<double> eachUs(int count, bool apart, const std::function<void()>& enqueue) override {
    std::vector<std::array<EventHandle, 2>> events(static_cast<size_t>(count));
    for (auto& pair : events) pair = {makeEvent(), makeEvent()};
    begin();
    for (auto& [start, end] : events) {
      if (apart) barrier();
      record(start);
      enqueue();
      record(end);
    }
    synchronize();
    std::vector<double> times;
    for (auto& [start, end] : events) times.push_back(usBetween(start, end));
    return times;
  }

  std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) override {
    checkCuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream_.get(), &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    checkCuda(cudaStreamEndCapture(stream_.get(), &graph), "cudaStreamEndCapture");
    auto made = std::make_unique<CudaGraph>(graph, stream_.get());
    checkCuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    // Graph instantiation waits for the GPU, including other ranks' kernels: launches start after all ranks have
    // finished it.
    group_.barrier();
    return made;
  }

  std::unique_ptr<Window> window(size_t bytes) override { return makeWindow(group_, bytes); }

  void copy(void* to, const void* from, size_t bytes) override {
    checkCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync");
  }

  LinkLimits limits() override {
    if (!limits_) limits_ = std::make_unique<LinkLimits>(measureLimits());
    return *limits_;
  }

 private:
  void makeFlags() {
    if (group_.size() > kMostFlags) return;
    constexpr size_t kBytes = (kMostFlags + 1) * sizeof(uint32_t);
    auto window = makeWindow(group_, kBytes);
    if (!window) return;
    void* failed = nullptr;
    checkCuda(cudaHostAlloc(&failed, sizeof(uint32_t), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
    failed_.reset(failed);
    epoch_ = allocateDevice(sizeof(uint32_t));
    flags_.self = group_.rank();
    flags_.size = group_.size();
    for (int rank = 0; rank < group_.size(); ++rank) flags_.words[rank] = static_cast<uint32_t*>(window->at(rank));
    flags_.epoch = static_cast<uint32_t*>(epoch_.get());
    flags_.failed = static_cast<uint32_t*>(failed);
    *flags_.failed = 0;
    gpuFill(window->at(group_.rank()), 0, kBytes);
    gpuFill(epoch_.get(), 0, sizeof(uint32_t));
    flagWindow_ = std::move(window);
    group_.barrier();
  }

  /// One step of a barrier among ranks that do not map each other's memory (dissemination).
  void pass(int distance) {
    const int size = group_.size();
    const int to = (group_.rank() + distance) % size;
    const int from = (group_.rank() + size - distance) % size;
    auto* const bytes = static_cast<std::byte*>(token_.get());
    require(seqparSendRecv(bytes, 1, to, bytes + 1, 1, from, group_.comm(), stream_.get()), "seqparSendRecv",
            group_.comm());
  }

  /// Starts the following work on all ranks together, if they have enqueued it by then.
  void begin() {
    group_.barrier();
    if (flagWindow_) return launchBarrier(flags_, kHoldNs, stream_.get());
    barrier();
  }

  void record(const EventHandle& event) { checkCuda(cudaEventRecord(event.get(), stream_.get()), "cudaEventRecord"); }

  double medianOverRanks(const std::function<void()>& enqueue) {
    std::vector<double> times;
    for (int i = 0; i < kProbes; ++i) times.push_back(elapsedUs(enqueue));
    const double mine = median(times);
    return median(group_.gather(std::span(&mine, 1)));
  }

  LinkLimits measureLimits() {
    if (group_.size() < 2 || sharing_ > 1 || !flagWindow_) return {};
    uint32_t sent = 0;
    std::vector<double> flags;
    for (int i = 0; i < kProbes; ++i) {
      flags.push_back(elapsedUs([&] {
        if (group_.rank() < 2) launchPingPong(flags_, sent, kPingPongs, stream_.get());
      }));
      sent += kPingPongs;
    }
    const double mine = median(flags) / (2.0 * kPingPongs);
    const double alpha = group_.gather(std::span(&mine, 1))[0];
    const auto window = makeWindow(group_, kStoreBytes);
    if (!window) return {};
    void* const next = window->at((group_.rank() + 1) % group_.size());
    const double us = medianOverRanks([&] { launchStores(next, kStoreBytes, stream_.get()); });
    return {alpha, static_cast<double>(kStoreBytes) / us * 1e6};
  }

  Group& group_;
  int device_, sharing_;
  StreamHandle stream_;
  PinnedMemory failed_;
  DeviceMemory epoch_, token_;
  std::unique_ptr<Window> flagWindow_;
  Flags flags_;
  std::unique_ptr<LinkLimits> limits_;
};

}  // namespace

int gpuCount() {
  // Streams that share a queue, or lazy loading of a kernel during a wait, would deadlock ranks that share a GPU.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess)
    throw UsageError(std::string("option --device: no GPU here: ") + cudaGetErrorString(result));
  if (count == 0) throw UsageError("option --device: no GPU here");
  return count;
}

size_t gpuMemoryInUse() {
  size_t available = 0, total = 0;
  checkCuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return total - available;
}

void gpuUse(int device) {
  checkCuda(cudaSetDevice(device), "cudaSetDevice");
}

std::unique_ptr<Gpu> makeGpu(Group& group, int device, int sharing) {
  return std::make_unique<CudaGpu>(group, device, sharing);
}

void gpuCopy(void* to, const void* from, size_t bytes) {
  checkCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread), "cudaMemcpyAsync");
  checkCuda(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
}

void gpuFill(void* at, int byte, size_t bytes) {
  checkCuda(cudaMemsetAsync(at, byte, bytes, cudaStreamPerThread), "cudaMemsetAsync");
  checkCuda(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
}

}  // namespace seqpar::perf
