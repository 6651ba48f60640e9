#include "base/shared_buffers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/pages.h"
#include "base/process.h"

namespace seqpar {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLargePage = size_t{2} << 20;
/// Addresses that a process needs for each peer, at most: a process has 128 TiB.
constexpr size_t kMost = size_t{128} << 30;
/// Smaller buffers contain no payload that is worth a mapping.
constexpr size_t kLeastBuffer = size_t{16} << 10;

size_t up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

size_t memoryOfMachine() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
}

/// With strict accounting, a page of the file that cannot be allocated is a signal at its first access.
bool strictAccounting() {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  return file.get() == '2';
}

/// The files of all ranks of a host would use up the addresses that a process may have.
bool limitedAddresses() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

struct Slot {
  std::mutex mutex;
  std::weak_ptr<SharedBuffers> buffers;
};

}  // namespace

SharedBuffers::SharedBuffers(size_t bytes)
    : file_(SharedFile::create(up(bytes, kLargePage), false)),
      mapping_(file_, up(bytes, kLargePage), PROT_NONE),
      token_(randomFileToken()),
      forks_(forks()) {
  // Core dumps read all pages of a mapping, and would allocate those that are missing.
  ::madvise(mapping_.data(), mapping_.size(), MADV_DONTDUMP);
  free_[0] = mapping_.size();
  // The token's page stays allocated.
  std::byte* const first = allocate(sizeof(token_));
  if (first != mapping_.data()) fail(seqparSystemError, "mprotect: ", std::strerror(errno));
  std::memcpy(first, &token_, sizeof(token_));
}

SharedBuffers::~SharedBuffers() = default;

bool SharedBuffers::mine() const {
  return forks_ == forks();
}

std::shared_ptr<SharedBuffers> SharedBuffers::ofProcess(bool create) {
  auto& only = seqpar::ofProcess<Slot>();
  const std::lock_guard lock(only.mutex);
  auto buffers = only.buffers.lock();
  if (buffers != nullptr || !create || strictAccounting() || limitedAddresses()) return buffers;
  try {
    buffers = std::make_shared<SharedBuffers>(std::clamp(memoryOfMachine(), kLargePage, kMost));
  } catch (const Error&) {
    return nullptr;
  }
  only.buffers = buffers;
  return buffers;
}

std::byte* SharedBuffers::allocate(size_t bytes) {
  const size_t alignment = bytes >= kLargePage ? kLargePage : kPage;
  if (bytes > mapping_.size()) return nullptr;
  const size_t need = up(bytes, kPage);
  const std::lock_guard lock(mutex_);
  // First fit keeps the buffers together at the begin of the file.
  for (auto room = free_.begin(); room != free_.end(); ++room) {
    const auto [offset, size] = *room;
    const size_t begin = up(offset, alignment);
    if (begin - offset + need > size) continue;
    std::byte* const buffer = mapping_.data() + begin;
    if (::mprotect(buffer, need, PROT_READ | PROT_WRITE) != 0) return nullptr;
    ::madvise(buffer, need, MADV_DODUMP);
    if (alignment == kLargePage) ::madvise(buffer, need, MADV_HUGEPAGE);
    used_[begin] = need;
    const size_t after = offset + size - (begin + need);
    if (after != 0) free_[begin + need] = after;
    if (begin != offset) {
      room->second = begin - offset;
    } else {
      free_.erase(room);
    }
    return buffer;
  }
  return nullptr;
}

void SharedBuffers::free(std::byte* buffer) noexcept {
  if (!mine()) return;
  const auto begin = static_cast<size_t>(buffer - mapping_.data());
  const std::lock_guard lock(mutex_);
  const auto entry = used_.extract(begin);
  if (entry.empty()) return;
  close(begin, entry.mapped());
  auto after = free_.emplace(begin, entry.mapped()).first;
  const auto next = std::next(after);
  if (next != free_.end() && after->first + after->second == next->first) {
    after->second += next->second;
    free_.erase(next);
  }
  if (after == free_.begin()) return;
  const auto before = std::prev(after);
  if (before->first + before->second != after->first) return;
  before->second += after->second;
  free_.erase(after);
}

/// Gives the memory back to the system. The file keeps its size, so peers that map it read zeros.
void SharedBuffers::close(size_t offset, size_t bytes) noexcept {
  ::fallocate(file_.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
  ::mprotect(mapping_.data() + offset, bytes, PROT_NONE);
  ::madvise(mapping_.data() + offset, bytes, MADV_DONTDUMP);
}

std::shared_ptr<std::byte> allocateShared(size_t bytes, const char* what) {
  if (const auto buffers = bytes < kLeastBuffer ? nullptr : SharedBuffers::ofProcess(false)) {
    if (std::byte* const made = buffers->allocate(bytes)) {
      return {made, [buffers](std::byte* buffer) { buffers->free(buffer); }};
    }
  }
  return allocatePages(bytes, what);
}

}  // namespace seqpar
