#include "transport/caches.h"

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

}  // namespace

bool processorsShareCache() {
  static const bool share = findOut();
  return share;
}

}  // namespace seqpar
