// Memory for buffers.
#include <sys/mman.h>

#include <cstdlib>
#include <functional>
#include <unordered_map>

#include "api/boundary.h"

using namespace seqpar;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLargePage = size_t{2} << 20;

/// What seqparMemAlloc() gave out, so that seqparMemFree() can refuse anything else.
class Allocations {
 public:
  void* makeOnHost(size_t bytes) {
    const size_t alignment = bytes >= kLargePage ? kLargePage : kPage;
    if (bytes > SIZE_MAX - alignment) throw std::bad_alloc();
    // The set of pointers owns it. NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
    void* pointer = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (pointer == nullptr) throw std::bad_alloc();
    if (alignment == kLargePage) madvise(pointer, bytes, MADV_HUGEPAGE);  // a wish; small pages work as well
    keep(pointer, [pointer] { std::free(pointer); });                     // NOLINT: the C interface hands out ownership
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

 private:
  void keep(void* pointer, std::function<void()> free) {
    const std::lock_guard lock(mutex_);
    pointers_[pointer] = std::move(free);
  }

  std::mutex mutex_;
  std::unordered_map<void*, std::function<void()>> pointers_;
};

Allocations& allocations() {
  static auto* const table = std::make_unique<Allocations>().release();
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
    *pointer = found.device() == nullptr ? allocations().makeOnHost(bytes)
                                         : allocations().makeOnDevice(bytes, *found.device());
  });
}

SEQPAR_API seqparResult_t seqparMemFree(void* pointer) {
  const char* call = "seqparMemFree";
  return atBoundary(call, [&] {
    if (pointer != nullptr && !allocations().release(pointer)) {
      fail(seqparInvalidArgument, call, ": pointer is ", pointer,
           ", expected what seqparMemAlloc gave and was not freed yet");
    }
  });
}

}  // extern "C"
