// Destination memory and the kind of stores: for data that another processor reads.
#pragma once

#include <cstddef>

namespace seqpar {

enum class Store {
  Cached,   ///< ordinary stores: for a reader on this processor
  Streamed  ///< past the caches: another processor then reads from memory, many times faster than from the caches of a
            ///< processor that shares none with it, and little slower if they do share one
};

struct Target {
  std::byte* data = nullptr;
  Store store = Store::Cached;

  Target() = default;
  /// Ordinary memory; null: no destination.
  Target(void* memory) : data(static_cast<std::byte*>(memory)) {}  // NOLINT(google-explicit-constructor)
  Target(std::byte* memory, Store how) : data(memory), store(how) {}

  explicit operator bool() const { return data != nullptr; }
  Target after(size_t bytes) const { return {data + bytes, store}; }
};

/// Copies. Streamed bytes are visible to a thread that sees a later store of this thread.
void copyTo(Target to, const void* from, size_t bytes);

/// copyTo() for one of several parts. The parts become visible with finishParts(): one fence is faster than a fence per
/// part.
void copyPartTo(Target to, const void* from, size_t bytes);
void finishParts();

/// Copies data that another processor wrote. Equally fast at any destination alignment, unlike memcpy: for large copies
/// memcpy may use string instructions, which were 6 times slower at an odd address. Streamed bytes are visible to other
/// threads only after finishParts().
void copyFrom(void* to, const void* from, size_t bytes, Store store = Store::Cached);

}  // namespace seqpar
