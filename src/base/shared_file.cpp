#include "base/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "base/shortage.h"

namespace seqpar {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

/// Inode of this process's PID namespace; 0 if unknown.
uint64_t pidNamespace() {
  struct stat entry {};
  return ::stat("/proc/self/ns/pid", &entry) == 0 ? static_cast<uint64_t>(entry.st_ino) : 0;
}

/// Throws Error or Shortage with `what` and the meaning of `error`.
[[noreturn]] void failSystem(const std::string& what, int error) {
  const std::string text = concat(what, ": ", std::strerror(error));
  if (isShortage(error)) throw Shortage(seqparSystemError, text);
  throw Error(seqparSystemError, text);
}

/// An address of at least `size` bytes that no mapping uses, aligned to 2 MiB.
std::byte* alignedPlace(size_t size) {
  void* const all = ::mmap(nullptr, size + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) failSystem(concat("mmap(", size + kLargePage, " bytes)"), errno);
  auto* const begin = static_cast<std::byte*>(all);
  const size_t before = (kLargePage - reinterpret_cast<uintptr_t>(begin) % kLargePage) % kLargePage;
  if (before != 0) ::munmap(begin, before);
  ::munmap(begin + before + size, kLargePage - before);
  return begin + before;
}

}  // namespace

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SharedFile SharedFile::create(size_t bytes, bool allocated) {
  SharedFile file(::memfd_create("seqpar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.descriptor_ < 0) fail(seqparSystemError, "memfd_create: ", std::strerror(errno));
  if (allocated) {
    const int status = ::posix_fallocate(file.descriptor_, 0, static_cast<off_t>(bytes));
    if (status != 0) fail(seqparSystemError, "posix_fallocate(", bytes, " bytes): ", std::strerror(status));
  } else if (::ftruncate(file.descriptor_, static_cast<off_t>(bytes)) != 0) {
    fail(seqparSystemError, "ftruncate(", bytes, " bytes): ", std::strerror(errno));
  }
  // An access beyond the end of a mapped file would be a signal.
  if (::fcntl(file.descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail(seqparSystemError, "fcntl(F_ADD_SEALS): ", std::strerror(errno));
  }
  return file;
}

SharedFile SharedFile::open(const SharedFileCard& card, int flags) {
  if (card.processes != pidNamespace()) fail(seqparSystemError, "its process is in another PID namespace");
  const std::string path = concat("/proc/", card.process, "/fd/", card.descriptor);
  // Flags that prevent blocking, or acquiring a terminal, if the path refers to an unexpected file.
  SharedFile file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.descriptor_ < 0) failSystem(concat("open(", path, ")"), errno);
  struct stat entry {};
  if (::fstat(file.descriptor_, &entry) != 0 || !S_ISREG(entry.st_mode) ||
      static_cast<uint64_t>(entry.st_size) != card.bytes) {
    fail(seqparSystemError, path, " is another file than meant");
  }
  return file;
}

SharedFileCard SharedFile::card(size_t bytes, uint64_t token) const {
  return {pidNamespace(), ::getpid(), descriptor_, bytes, token};
}

SharedMapping::SharedMapping(const SharedFile& file, size_t size, int protection) {
  std::byte* const place = size >= kLargePage ? alignedPlace(size) : nullptr;
  const int flags = MAP_SHARED | MAP_NORESERVE | (place != nullptr ? MAP_FIXED : 0);
  void* const memory = ::mmap(place, size, protection, flags, file.descriptor(), 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    if (place != nullptr) ::munmap(place, size);
    failSystem(concat("mmap(", size, " bytes)"), error);
  }
  bytes_ = {static_cast<std::byte*>(memory), size};
}

SharedMapping::~SharedMapping() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

uint64_t randomFileToken() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random() | 1;
}

}  // namespace seqpar
