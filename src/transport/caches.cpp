#include "transport/caches.h"

#include <cstdlib>
#include <fstream>
#include <string>

namespace seqpar {
namespace {

std::string lineOf(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Virtual machines report one cache for processors that have several, so only a vendor whose last cache serves all
/// processors of a socket is trusted.
bool vendorSharesPerSocket() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

bool findOut() {
  if (!vendorSharesPerSocket()) return false;
  const std::string online = lineOf("/sys/devices/system/cpu/online");
  return !online.empty() && online == lineOf("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list");
}

size_t findLastCacheBytes() {
  const std::string size = lineOf("/sys/devices/system/cpu/cpu0/cache/index3/size");  // such as 32768K
  char* unit = nullptr;
  const size_t count = std::strtoul(size.c_str(), &unit, 10);
  return *unit == 'K' ? count << 10 : *unit == 'M' ? count << 20 : 0;
}

}  // namespace

bool processorsShareCache() {
  static const bool share = findOut();
  return share;
}

size_t lastCacheBytes() {
  static const size_t bytes = findLastCacheBytes();
  return bytes;
}

}  // namespace seqpar
