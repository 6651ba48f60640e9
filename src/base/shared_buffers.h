// Memory for buffers that the processes of a host map from each other, so that a receiver copies a payload once, from
// the sender's buffer. One file per process contains all its buffers; peers map the whole file when a communicator is
// created. A buffer that is freed and allocated again has the same place in the file: no mapping is ever stale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/shared_file.h"

namespace seqpar {

/// The buffers of this process. Thread safe. The file is as large as the memory of the machine, but has memory only
/// where buffers were written.
class SharedBuffers {
 public:
  /// Creates the file; throws SystemError. Use ofProcess() instead, except in tests.
  explicit SharedBuffers(size_t bytes);
  ~SharedBuffers();
  SharedBuffers(const SharedBuffers&) = delete;
  SharedBuffers& operator=(const SharedBuffers&) = delete;

  /// The buffers of this process, which exist while a mailbox or a buffer uses them. create: if there are none yet.
  /// Null if there are none or the system does not allow them.
  static std::shared_ptr<SharedBuffers> ofProcess(bool create);

  /// Uninitialized memory, aligned to 4096 bytes, from 2 MiB on to 2 MiB; null if there is no room.
  std::byte* allocate(size_t bytes);
  void free(std::byte* buffer) noexcept;

  bool contain(const void* data, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(mapping_.data());
    return at < mapping_.size() && bytes <= mapping_.size() - at;
  }

  SharedFileCard card() const { return file_.card(mapping_.size(), token_); }
  const std::byte* begin() const { return mapping_.data(); }
  /// False in a child process, which must not allocate places that its parent allocates, too.
  bool mine() const;

 private:
  void close(size_t offset, size_t bytes) noexcept;

  SharedFile file_;
  SharedMapping mapping_;
  uint64_t token_;
  unsigned forks_;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  ///< offset -> bytes, never adjacent to each other
  std::map<size_t, size_t> used_;
};

/// Memory as of allocatePages(), that peers map if possible. SystemError in the name of `what` if there is no memory.
std::shared_ptr<std::byte> allocateShared(size_t bytes, const char* what);

}  // namespace seqpar
