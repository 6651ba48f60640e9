// Anonymous files of memory that processes of one host map from each other. They exist as long as a process has them
// open or mapped, and no process can truncate them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.h"

namespace seqpar {

/// Data that a peer needs to find and verify a file. The first 8 bytes of the file are the token.
struct SharedFileCard {
  uint64_t processes;  ///< the PID namespace of `process`
  int64_t process;
  int64_t descriptor;  ///< file descriptor in that process; -1: there is no file
  uint64_t bytes;
  uint64_t token;
};

/// Of descriptors or memory: a process that cannot map a file for lack of them has no other transport, either.
class Shortage : public Error {
 public:
  using Error::Error;
};

class SharedFile {
 public:
  SharedFile() = default;
  SharedFile(SharedFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  SharedFile& operator=(SharedFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~SharedFile();

  /// Creates a file of zeros. `allocated`: now, so that insufficient memory is an error here; otherwise at the first
  /// access of a page. Throws SystemError.
  static SharedFile create(size_t bytes, bool allocated);
  /// Opens a peer's file. Throws SystemError, or a Shortage; the caller verifies the token.
  static SharedFile open(const SharedFileCard& card, int flags);

  SharedFileCard card(size_t bytes, uint64_t token) const;
  int descriptor() const { return descriptor_; }

 private:
  explicit SharedFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

/// A mapping of a file, unmapped on destruction.
class SharedMapping {
 public:
  SharedMapping() = default;
  /// Maps the first `size` bytes, aligned to 2 MiB if they are that many. Throws SystemError, or a
  /// Shortage.
  SharedMapping(const SharedFile& file, size_t size, int protection);
  SharedMapping(SharedMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMapping();

  std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  std::span<std::byte> bytes_;
};

/// Never 0.
uint64_t randomFileToken();

}  // namespace seqpar
