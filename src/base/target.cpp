#include "base/target.h"

#include <cstdint>
#include <cstring>

#include "base/lines.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace seqpar {

void copyPartTo(Target to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  size_t streamed = 0;
  if (to.store == Store::Streamed && reinterpret_cast<uintptr_t>(to.data) % kCopiedLine == 0) {
    const size_t lines = bytes / kCopiedLine;
    if (lines > 0) lineCopies().streamed(to.data, static_cast<const std::byte*>(from), lines);
    streamed = lines * kCopiedLine;
  }
  std::memcpy(to.data + streamed, static_cast<const std::byte*>(from) + streamed, bytes - streamed);
}

void finishParts() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void copyTo(Target to, const void* from, size_t bytes) {
  copyPartTo(to, from, bytes);
  if (to.store == Store::Streamed) finishParts();
}

void copyFrom(void* to, const void* from, size_t bytes, Store store) {
  if (bytes == 0) return;
  size_t copied = 0;
  if (store == Store::Streamed) {
    const size_t toLine = (kCopiedLine - reinterpret_cast<uintptr_t>(to) % kCopiedLine) % kCopiedLine;
    copied = toLine < bytes ? toLine : bytes;
    std::memcpy(to, from, copied);
  }
  if (const size_t lines = (bytes - copied) / kCopiedLine; lines > 0) {
    const LineCopies& copies = lineCopies();
    const auto copy = store == Store::Streamed ? copies.streamed : copies.cached;
    copy(static_cast<std::byte*>(to) + copied, static_cast<const std::byte*>(from) + copied, lines);
    copied += lines * kCopiedLine;
  }
  std::memcpy(static_cast<std::byte*>(to) + copied, static_cast<const std::byte*>(from) + copied, bytes - copied);
}

}  // namespace seqpar
