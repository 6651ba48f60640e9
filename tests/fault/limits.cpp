#include "limits.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace seqpar::test {
namespace {

unsigned long addressSpace() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (file == nullptr || std::fscanf(file, "%lu", &pages) != 1) std::abort();
  std::fclose(file);
  return pages * static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
}

/// One more than the highest descriptor.
unsigned long descriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) std::abort();
  unsigned long highest = 0;
  while (const dirent* const entry = readdir(folder)) {
    const auto number = std::strtoul(entry->d_name, nullptr, 10);
    if (number != static_cast<unsigned long>(dirfd(folder))) highest = std::max(highest, number);
  }
  closedir(folder);
  return highest + 1;
}

void setLimit(int resource, unsigned long limit) {
  rlimit both{};
  getrlimit(static_cast<__rlimit_resource>(resource), &both);
  both.rlim_cur = limit;
  if (setrlimit(static_cast<__rlimit_resource>(resource), &both) != 0) std::abort();
}

}  // namespace

ShortOf::ShortOf(What what, int slackKib) : resource_(what == What::Memory ? RLIMIT_AS : RLIMIT_NOFILE) {
  rlimit both{};
  getrlimit(static_cast<__rlimit_resource>(resource_), &both);
  before_ = both.rlim_cur;
  if (what == What::Memory) {
    setLimit(resource_, addressSpace() + static_cast<unsigned long>(slackKib) * 1024);
    return;
  }
  setLimit(resource_, descriptors());
  for (int taken = dup(STDIN_FILENO); taken >= 0; taken = dup(STDIN_FILENO)) taken_.push_back(taken);
}

ShortOf::~ShortOf() {
  setLimit(resource_, before_);
  for (const int one : taken_) close(one);
}

}  // namespace seqpar::test
