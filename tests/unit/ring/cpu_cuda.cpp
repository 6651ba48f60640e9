#include "common/draw_seed.h"
#include "cpu_cuda_state.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>

namespace seqpar::test {
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

void copyWords(void* into, const void* from, std::size_t bytes) {
  auto* target = static_cast<std::uint32_t*>(into);
  const auto* source = static_cast<const std::uint32_t*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(std::uint32_t); ++i) {
    // NOLINTNEXTLINE: an atomic_ref to const is C++26
    const auto value = std::atomic_ref(const_cast<std::uint32_t&>(source[i])).load();
    std::atomic_ref(target[i]).store(value);
  }
}

}  // namespace

CpuCuda& cpuCuda() {
  static CpuCuda settings;
  return settings;
}

void onCpuStream(cudaStream_t stream, std::function<void()> work) {
  stream->worker->enqueue(std::move(work));
}

void Worker::enqueue(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  wake_.notify_one();
}

void Worker::serve() {
  std::mt19937 random(seqpar::test::drawSeed());
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

void await(const Done& done) {
  while (!done->load()) std::this_thread::sleep_for(kPollInterval);
}

Done mark(cudaStream_t stream) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  onCpuStream(stream, [done] { done->store(true); });
  return done;
}

int& currentDevice() {
  thread_local int device = 0;
  return device;
}

std::shared_ptr<Worker> sharedWorker(int device) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Worker>> workers;
  const std::lock_guard lock(mutex);
  auto worker = workers[device].lock();
  if (!worker) workers[device] = worker = std::make_shared<Worker>();
  return worker;
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

std::vector<std::pair<cudaHostFn_t, void*>>& keptForGraphs() {
  static std::vector<std::pair<cudaHostFn_t, void*>> all;
  return all;
}

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
