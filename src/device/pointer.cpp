// Queries a CUDA driver that the process has already loaded, through its C interface, which is stable across CUDA
// versions.
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdint>

#include "device/device.h"

namespace seqpar {
namespace {

using PointerGetAttribute = int (*)(void* value, int attribute, std::uintptr_t pointer);

constexpr int kSuccess = 0;
constexpr int kAttributeMemoryType = 2;
constexpr int kAttributeIsManaged = 8;
constexpr unsigned kMemoryTypeDevice = 2;
constexpr unsigned kMemoryTypeArray = 3;

/// The number of objects that the process has loaded so far; takes a few hundred nanoseconds.
std::uint64_t loadedObjects() noexcept {
  std::uint64_t count = 0;
  const auto read = [](dl_phdr_info* info, std::size_t, void* into) {
    *static_cast<std::uint64_t*>(into) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(read, &count);
  return count;
}

// The driver may be loaded after the first query, so the search is repeated, but only after another object was loaded,
// since it accesses the file system.
PointerGetAttribute loadedDriver(std::int64_t now) noexcept {
  static std::atomic<PointerGetAttribute> known{nullptr};
  static std::atomic<std::uint64_t> searchedAt{0};
  PointerGetAttribute function = known.load(std::memory_order_acquire);
  if (function != nullptr) return function;
  if (RecentSearch::notFound(now)) return nullptr;
  RecentSearch::keep(now);
  const std::uint64_t objects = loadedObjects();
  if (searchedAt.load(std::memory_order_acquire) == objects) return nullptr;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) {
    searchedAt.store(objects, std::memory_order_release);
    return nullptr;
  }
  function = reinterpret_cast<PointerGetAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  // The handle is kept: the function stays valid even if its user unloads the driver.
  RecentSearch::keep(0);
  known.store(function, std::memory_order_release);
  return function;
}

}  // namespace

bool isKnownToDriver(const void* pointer) noexcept {
  const PointerGetAttribute getAttribute = pointer == nullptr ? nullptr : loadedDriver(ticksNow());
  unsigned type = 0;
  return getAttribute != nullptr &&
         getAttribute(&type, kAttributeMemoryType, reinterpret_cast<std::uintptr_t>(pointer)) == kSuccess;
}

bool isDevicePointer(const void* pointer, std::int64_t now) noexcept {
  if (pointer == nullptr) return false;
  const PointerGetAttribute getAttribute = loadedDriver(now);
  if (getAttribute == nullptr) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  unsigned type = 0;
  if (getAttribute(&type, kAttributeMemoryType, address) != kSuccess) return false;
  if (type == kMemoryTypeArray) return true;
  if (type != kMemoryTypeDevice) return false;
  int managed = 0;
  return getAttribute(&managed, kAttributeIsManaged, address) != kSuccess || managed == 0;
}

}  // namespace seqpar
