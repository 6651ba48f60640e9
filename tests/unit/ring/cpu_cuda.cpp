#include "cpu_cuda.h"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using seqpar::test::cpuCuda;
using seqpar::test::kCpuDevices;

namespace {

constexpr std::chrono::microseconds kLook{20};

/// Carries out work in order on a thread.
class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    enqueue({});
    thread_.join();
  }

  void enqueue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    wake_.notify_one();
  }

 private:
  void serve() {
    std::mt19937 random(std::random_device{}());
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!work) return;
      if (const auto most = cpuCuda().mostDelayUs; most > 0 && random() % 4 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % most));
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

using Done = std::shared_ptr<std::atomic<bool>>;

void await(const Done& done) {
  while (!done->load()) std::this_thread::sleep_for(kLook);
}

int& currentDevice() {
  thread_local int device = 0;
  return device;
}

/// The worker of all streams of a device that are served one after the other.
std::shared_ptr<Worker> sharedWorker(int device) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Worker>> workers;
  const std::lock_guard lock(mutex);
  auto worker = workers[device].lock();
  if (!worker) workers[device] = worker = std::make_shared<Worker>();
  return worker;
}

}  // namespace

struct CUstream_st {
  std::shared_ptr<Worker> worker;
};

struct CUevent_st {
  std::mutex mutex;
  Done latest = std::make_shared<std::atomic<bool>>(true);

  Done get() {
    const std::lock_guard lock(mutex);
    return latest;
  }
};

namespace seqpar::test {

CpuCuda& cpuCuda() {
  static CpuCuda settings;
  return settings;
}

void onCpuStream(cudaStream_t stream, std::function<void()> work) {
  stream->worker->enqueue(std::move(work));
}

}  // namespace seqpar::test

using seqpar::test::onCpuStream;

namespace {

class Allocations {
 public:
  void add(const void* memory) {
    const std::lock_guard lock(mutex_);
    all_.insert(memory);
  }
  void remove(const void* memory) {
    const std::lock_guard lock(mutex_);
    all_.erase(memory);
  }
  bool has(const void* memory) {
    const std::lock_guard lock(mutex_);
    return all_.count(memory) > 0;
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(all_.size());
  }

 private:
  std::mutex mutex_;
  std::set<const void*> all_;
};
Allocations& allocations() {
  static Allocations all;
  return all;
}

std::vector<std::pair<cudaHostFn_t, void*>>& keptForGraphs() {
  static std::vector<std::pair<cudaHostFn_t, void*>> all;
  return all;
}

Done mark(cudaStream_t stream) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  onCpuStream(stream, [done] { done->store(true); });
  return done;
}

CUresult streamWaitValue(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  onCpuStream(stream, [address, value] {
    const std::atomic_ref word(*reinterpret_cast<std::uint32_t*>(address));
    while (static_cast<std::int32_t>(word.load() - value) < 0) std::this_thread::sleep_for(kLook);
  });
  return CUDA_SUCCESS;
}

void copyWords(void* into, const void* from, std::size_t bytes) {
  auto* target = static_cast<std::uint32_t*>(into);
  const auto* source = static_cast<const std::uint32_t*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(std::uint32_t); ++i) {
    // NOLINTNEXTLINE: an atomic_ref to const is C++26
    const auto value = std::atomic_ref(const_cast<std::uint32_t&>(source[i])).load();
    std::atomic_ref(target[i]).store(value);
  }
}

/// Small copies may be of words that others look at.
void copyBytes(void* into, const void* from, std::size_t bytes) {
  constexpr std::size_t kMostWords = 16384;
  const auto aligned =
      (reinterpret_cast<std::uintptr_t>(into) | reinterpret_cast<std::uintptr_t>(from) | bytes) % 4 == 0;
  if (aligned && bytes <= kMostWords) {
    copyWords(into, from, bytes);
  } else {
    std::memcpy(into, from, bytes);
  }
}

cudaError_t makeStream(cudaStream_t* stream, bool alone) {
  const bool shared = cpuCuda().oneAfterTheOther && !alone;
  *stream = new CUstream_st{shared ? sharedWorker(currentDevice()) : std::make_shared<Worker>()};  // NOLINT: a handle
  return cudaSuccess;
}

cudaError_t allocate(void** memory, std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096;
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  allocations().add(*memory);
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  allocations().remove(memory);
  std::free(memory);  // NOLINT: of allocate()
  return cudaSuccess;
}

}  // namespace

namespace seqpar::test {

int endCpuGraphs() {
  const auto all = std::exchange(keptForGraphs(), {});
  for (const auto& [onEnd, kept] : all) onEnd(kept);
  return static_cast<int>(all.size());
}

int cpuAllocations() {
  return allocations().count();
}

bool isCpuAllocation(const void* memory) {
  return allocations().has(memory);
}

}  // namespace seqpar::test

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kCpuDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = currentDevice();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  currentDevice() = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "cpu:%d", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) {
  *least = 0;
  *most = -1;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  const bool known = std::string(name) == "cuStreamWaitValue32";
  *found = known ? reinterpret_cast<void*>(&streamWaitValue) : nullptr;
  *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) {
  return "an error";
}
const char* cudaGetErrorString(cudaError_t) {
  return "an error of the CPU's CUDA";
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return allocate(memory, bytes);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return allocate(memory, bytes);
}
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return allocate(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  return release(memory);
}
cudaError_t cudaFreeHost(void* memory) {
  return release(memory);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  onCpuStream(stream, [memory] { release(memory); });
  return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return cudaErrorNotSupported;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return cudaErrorNotSupported;
}

cudaError_t cudaMemcpyAsync(void* into, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  onCpuStream(stream, [=] { copyBytes(into, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  onCpuStream(stream, [=] {
    const auto byte = static_cast<std::uint32_t>(value & 0xff) * 0x01010101U;
    auto* const words = static_cast<std::uint32_t*>(memory);
    for (std::size_t i = 0; i < bytes / sizeof(byte); ++i) std::atomic_ref(words[i]).store(byte);
    std::memset(static_cast<char*>(memory) + bytes / sizeof(byte) * sizeof(byte), value, bytes % sizeof(byte));
  });
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void*, std::size_t, int, std::size_t, std::size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return makeStream(stream, true);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return makeStream(stream, false);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;  // NOLINT: a handle
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     std::size_t*) {
  const bool captured = stream == cpuCuda().captured && stream != nullptr;
  *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *id = captured ? cpuCuda().capture : 0;
  *graph = nullptr;
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void* kept, cudaHostFn_t onEnd, unsigned, unsigned) {
  keptForGraphs().emplace_back(onEnd, kept);
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return mark(stream)->load() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  await(mark(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  onCpuStream(stream, [done = event->get()] { await(done); });
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;  // NOLINT: a handle
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;  // NOLINT: a handle
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->get()->load() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(event->mutex);
  event->latest = mark(stream);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  await(event->get());
  return cudaSuccess;
}

// What the compiler's code for kernels asks for.
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*);
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t);
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*);
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  return cudaErrorNotSupported;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, CUstream_st*);
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, CUstream_st*) {
  return 1;
}
void** __cudaRegisterFatBinary(void*);
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**);
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**);
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
}
