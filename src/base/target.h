// Memory to write, and how: what one processor writes for another to read.
#pragma once

#include <cstddef>

namespace seqpar {

enum class Store {
  Cached,   ///< by ordinary stores: for a reader on this processor
  Streamed  ///< past the caches: another processor then reads it from memory, which is many times faster than out of
            ///< the caches of a processor that does not share one with it, and little slower where they do
};

struct Target {
  std::byte* data = nullptr;
  Store store = Store::Cached;

  Target() = default;
  /// Ordinary memory; null: not wanted.
  Target(void* memory) : data(static_cast<std::byte*>(memory)) {}  // NOLINT(google-explicit-constructor)
  Target(std::byte* memory, Store how) : data(memory), store(how) {}

  explicit operator bool() const { return data != nullptr; }
  Target after(size_t bytes) const { return {data + bytes, store}; }
};

/// Copies. Streamed bytes are visible to a thread that sees a later store of this one.
void copyTo(Target to, const void* from, size_t bytes);

/// The same for one of several parts, which are visible so only after finishParts(): waiting once is faster than after
/// every part.
void copyPartTo(Target to, const void* from, size_t bytes);
void finishParts();

/// Copies from what another processor wrote. As fast to memory of any alignment, which memcpy is not: for large copies
/// it may take to string instructions, and these were 6 times slower to an odd address.
/// Streamed bytes are visible to other threads only after finishParts().
void copyFrom(void* to, const void* from, size_t bytes, Store store = Store::Cached);

}  // namespace seqpar
