#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/shortage.h"
#include "bootstrap/agree.h"

namespace seqpar {
namespace {

/// Inode of this process's PID namespace; 0 if unknown.
uint64_t pidNamespace() {
  struct stat entry {};
  return ::stat("/proc/self/ns/pid", &entry) == 0 ? static_cast<uint64_t>(entry.st_ino) : 0;
}

/// Of descriptors or memory: without these, no other transport works either.
class Shortage : public Error {
 public:
  using Error::Error;
};

/// Throws Error or Shortage with `what` and errno's meaning.
[[noreturn]] void failSystem(const std::string& what) {
  const int error = errno;
  const std::string text = concat(what, ": ", std::strerror(error));
  if (isShortage(error)) throw Shortage(seqparSystemError, text);
  throw Error(seqparSystemError, text);
}

}  // namespace

/// Data that a peer needs to find and verify a segment.
struct SharedMemory::Card {
  uint64_t processes;  ///< the PID namespace of `process`
  int64_t process;
  int64_t descriptor;  ///< file descriptor in that process
  uint64_t bytes;
  uint64_t token;  ///< in the segment's header
};

SharedMemory::File::~File() {
  if (descriptor >= 0) ::close(descriptor);
}

SharedMemory::Mapping::Mapping(const File& file, size_t size) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
  if (memory == MAP_FAILED) failSystem(concat("mmap(", size, " bytes)"));
  bytes = {static_cast<std::byte*>(memory), size};
}

SharedMemory::Mapping::~Mapping() {
  if (!bytes.empty()) ::munmap(bytes.data(), bytes.size());
}

SharedMemory::SharedMemory(Allgather& control, const std::vector<bool>& candidates) : peers_(candidates.size()) {
  const auto readers = static_cast<size_t>(std::count(candidates.begin(), candidates.end(), true));
  Card card{};
  together(control, [&] {
    if (readers != 0) card = allocate(Segment::bytes(readers + 1));
  });
  std::vector<Card> cards(candidates.size());
  control.gatherValues(card, std::span(cards));
  together(control, [&] {
    for (size_t rank = 0; rank < candidates.size(); ++rank) {
      if (!candidates[rank]) continue;
      try {
        peers_[rank].memory = map(cards[rank]);
      } catch (const Shortage&) {
        throw;
      } catch (const Error& error) {
        peers_[rank].whyNot = error.what();
      }
    }
  });
}

SharedMemory::Card SharedMemory::allocate(size_t bytes) {
  file_ = File(::memfd_create("seqpar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file_.descriptor < 0) fail(seqparSystemError, "memfd_create: ", std::strerror(errno));
  // Allocated now: insufficient memory is an error here instead of a signal at the first access.
  const int status = ::posix_fallocate(file_.descriptor, 0, static_cast<off_t>(bytes));
  if (status != 0) fail(seqparSystemError, "posix_fallocate(", bytes, " bytes): ", std::strerror(status));
  // No process can truncate the mapped file.
  if (::fcntl(file_.descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail(seqparSystemError, "fcntl(F_ADD_SEALS): ", std::strerror(errno));
  }
  mine_ = Mapping(file_, bytes);
  // Touches all pages now, in order: if messages touch them first, messages stay slower (measured, not explained).
  std::memset(mine_.bytes.data(), 0, bytes);
  std::random_device random;
  const uint64_t token = (uint64_t{random()} << 32) | random() | 1;
  Segment(mine_.bytes.data(), 0).header().token = token;
  return {pidNamespace(), ::getpid(), file_.descriptor, bytes, token};
}

SharedMemory::Mapping SharedMemory::map(const Card& card) const {
  if (card.processes != pidNamespace()) fail(seqparSystemError, "its process is in another PID namespace");
  const std::string path = concat("/proc/", card.process, "/fd/", card.descriptor);
  // Flags that prevent blocking, or acquiring a terminal, if the path refers to an unexpected file.
  const File file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.descriptor < 0) failSystem(concat("open(", path, ")"));
  struct stat entry {};
  if (::fstat(file.descriptor, &entry) != 0 || !S_ISREG(entry.st_mode) ||
      static_cast<uint64_t>(entry.st_size) != card.bytes) {
    fail(seqparSystemError, path, " is another file than meant");
  }
  Mapping mapping(file, card.bytes);
  if (Segment(mapping.bytes.data(), 0).header().token != card.token) {
    fail(seqparSystemError, path, " is another memory than meant");
  }
  return mapping;
}

}  // namespace seqpar
