#include "base/target.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace seqpar {

#if defined(__x86_64__)
namespace {

constexpr size_t kCacheLine = 64;

// Whole cache lines, so that each is written to memory at once.
void streamLines(std::byte* to, const std::byte* from, size_t lines) {
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine) {
    for (size_t i = 0; i < kCacheLine; i += sizeof(__m128i)) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), part);
    }
  }
}

void copyLines(std::byte* to, const std::byte* from, size_t lines) {
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine) {
    for (size_t i = 0; i < kCacheLine; i += sizeof(__m128i)) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), part);
    }
  }
}

}  // namespace
#endif

void copyPartTo(Target to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  size_t streamed = 0;
#if defined(__x86_64__)
  if (to.store == Store::Streamed && reinterpret_cast<uintptr_t>(to.data) % kCacheLine == 0) {
    streamLines(to.data, static_cast<const std::byte*>(from), bytes / kCacheLine);
    streamed = bytes / kCacheLine * kCacheLine;
  }
#endif
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

void copyFrom(void* to, const void* from, size_t bytes, [[maybe_unused]] Store store) {
  if (bytes == 0) return;
  size_t copied = 0;
#if defined(__x86_64__)
  if (store == Store::Streamed) {
    const size_t toLine = (kCacheLine - reinterpret_cast<uintptr_t>(to) % kCacheLine) % kCacheLine;
    copied = toLine < bytes ? toLine : bytes;
    std::memcpy(to, from, copied);
  }
  const size_t lines = (bytes - copied) / kCacheLine;
  const auto copy = store == Store::Streamed ? streamLines : copyLines;
  copy(static_cast<std::byte*>(to) + copied, static_cast<const std::byte*>(from) + copied, lines);
  copied += lines * kCacheLine;
#endif
  std::memcpy(static_cast<std::byte*>(to) + copied, static_cast<const std::byte*>(from) + copied, bytes - copied);
}

}  // namespace seqpar
