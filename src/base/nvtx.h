// Ranges that profilers show (NVTX, domain "seqpar"); no-ops in builds without CUDA, and nearly free without a
// profiler.
#pragma once

#include <cstdint>

namespace seqpar::nvtx {

#ifdef SEQPAR_NVTX
/// Starts a range of the calling thread. `message` is a literal.
void push(const char* message) noexcept;
/// With a number of bytes as payload.
void push(const char* message, uint64_t bytes) noexcept;
/// Ends the thread's innermost range.
void pop() noexcept;
#else
inline void push(const char*) noexcept {}
inline void push(const char*, uint64_t) noexcept {}
inline void pop() noexcept {}
#endif

/// RAII scope of a range.
class Range {
 public:
  explicit Range(const char* message) noexcept { push(message); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { pop(); }
};

}  // namespace seqpar::nvtx
