#include "base/lines.h"

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cstring>
#endif

namespace seqpar {
namespace {

#if defined(__x86_64__)
// One loop for each instruction set: a function of one set cannot inline a template's code for another.
// NOLINTBEGIN(bugprone-macro-parentheses): a type
#define SEQPAR_LINE_COPY(name, features, Vector, load, store)                                       \
  __attribute__((target(features))) void name(std::byte* to, const std::byte* from, size_t lines) { \
    for (; lines > 0; --lines, to += kCopiedLine, from += kCopiedLine) {                            \
      for (size_t i = 0; i < kCopiedLine; i += sizeof(Vector)) {                                    \
        store(reinterpret_cast<Vector*>(to + i), load(reinterpret_cast<const Vector*>(from + i)));  \
      }                                                                                             \
    }                                                                                               \
  }
// NOLINTEND(bugprone-macro-parentheses)

SEQPAR_LINE_COPY(copySse, "sse2", __m128i, _mm_loadu_si128, _mm_storeu_si128)
SEQPAR_LINE_COPY(streamSse, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128)
SEQPAR_LINE_COPY(copyAvx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_storeu_si256)
SEQPAR_LINE_COPY(streamAvx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256)
SEQPAR_LINE_COPY(copyAvx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512)
SEQPAR_LINE_COPY(streamAvx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512)

#undef SEQPAR_LINE_COPY

constexpr LineCopies kPortable{copySse, streamSse};
constexpr LineCopies kAvx2{copyAvx2, streamAvx2};
constexpr LineCopies kAvx512{copyAvx512, streamAvx512};
#else
void copy(std::byte* to, const std::byte* from, size_t lines) {
  std::memcpy(to, from, lines * kCopiedLine);
}

constexpr LineCopies kPortable{copy, copy};
#endif

}  // namespace

const LineCopies& lineCopies([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return kAvx512;
  if (isa == Isa::Avx2) return kAvx2;
#endif
  return kPortable;
}

const LineCopies& lineCopies() {
  static const LineCopies& best = lineCopies(bestIsa());
  return best;
}

}  // namespace seqpar
