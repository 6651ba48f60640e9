// Asks a CUDA driver that the process has already loaded, through its C interface, which is stable across CUDA
// versions.
#include <dlfcn.h>

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

// The driver may be loaded after the first question, so only a found driver is remembered.
PointerGetAttribute loadedDriver() noexcept {
  static std::atomic<PointerGetAttribute> known{nullptr};
  PointerGetAttribute function = known.load(std::memory_order_acquire);
  if (function != nullptr) return function;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  function = reinterpret_cast<PointerGetAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  // The handle is kept: the function stays valid even if its user unloads the driver.
  known.store(function, std::memory_order_release);
  return function;
}

}  // namespace

bool isDevicePointer(const void* pointer) noexcept {
  if (pointer == nullptr) return false;
  const PointerGetAttribute getAttribute = loadedDriver();
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
