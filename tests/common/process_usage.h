// What a process occupies, for tests that look for growth.
#pragma once

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>

namespace seqpar::test {

struct ProcessUsage {
  long residentKib = 0, descriptors = 0, threads = 0;
};

inline long entriesOf(const char* folder) {
  long count = -2;  // "." and ".."
  DIR* const open = opendir(folder);
  if (open == nullptr) return 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

/// Of this process, after free memory has been returned to the system.
inline ProcessUsage processUsage() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  long pages = 0, resident = 0;
  file >> pages >> resident;
  return {resident * (sysconf(_SC_PAGESIZE) / 1024), entriesOf("/proc/self/fd"), entriesOf("/proc/self/task")};
}

}  // namespace seqpar::test
