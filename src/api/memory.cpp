// Allocation of buffers.
#include <pthread.h>

#include <functional>
#include <unordered_map>

#include "api/boundary.h"
#include "base/checked.h"
#include "base/shared_buffers.h"

using namespace seqpar;

namespace {

/// The live allocations of seqparMemAlloc(), so that seqparMemFree() can reject other pointers.
class Allocations {
 public:
  void* makeOnHost(size_t bytes) {
    auto buffer = allocateShared(bytes, "the caller");
    void* const pointer = buffer.get();
    keep(pointer, [buffer]() mutable { buffer.reset(); });
    return pointer;
  }

  void* makeOnDevice(size_t bytes, DeviceGroup& device) {
    DeviceAllocation made = device.allocate(bytes);
    keep(made.pointer, std::move(made.release));
    return made.pointer;
  }

  bool release(void* pointer) {
    std::function<void()> free;
    {
      const std::lock_guard lock(mutex_);
      const auto entry = pointers_.extract(pointer);
      if (entry.empty()) return false;
      free = std::move(entry.mapped());
    }
    free();
    return true;
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void keep(void* pointer, std::function<void()> free) {
    const std::lock_guard lock(mutex_);
    pointers_[pointer] = std::move(free);
  }

  std::mutex mutex_;
  std::unordered_map<void*, std::function<void()>> pointers_;
};

/// A forked child frees its copies of its parent's memory, so it has this table too: no thread may be changing it then.
Allocations& allocations() {
  static auto* const table = [] {
    auto* const made = std::make_unique<Allocations>().release();
    pthread_atfork([] { allocations().lock(); }, [] { allocations().unlock(); }, [] { allocations().unlock(); });
    return made;
  }();
  return *table;
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparMemAlloc(void** pointer, size_t bytes, seqparComm_t comm) {
  const char* call = "seqparMemAlloc";
  return onComm(call, comm, [&](Communicator& found) {
    requirePointer(call, "pointer", pointer);
    *pointer = nullptr;
    if (bytes == 0) return;
    if (bytes > kMostBytes) fail(seqparSystemError, call, ": bytes is ", bytes, ", more than any memory");
    *pointer = found.device() == nullptr ? allocations().makeOnHost(bytes)
                                         : allocations().makeOnDevice(bytes, *found.device());
  });
}

SEQPAR_API seqparResult_t seqparMemFree(void* pointer) {
  const char* call = "seqparMemFree";
  return atBoundary(call, [&] {
    if (pointer != nullptr && !allocations().release(pointer)) {
      fail(seqparInvalidArgument, call, ": pointer is ", pointer,
           ", expected memory of seqparMemAlloc that was not freed");
    }
  });
}

}  // extern "C"
