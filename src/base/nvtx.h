// Ranges that profilers show (NVTX, domain "seqpar"); nothing in builds without CUDA, and next to nothing without a
// profiler.
#pragma once

#include <cstdint>

namespace seqpar::nvtx {

#ifdef SEQPAR_NVTX
/// Begins a range of the calling thread. `message` is a literal.
void push(const char* message) noexcept;
/// With a number of bytes.
void push(const char* message, uint64_t bytes) noexcept;
/// Ends the thread's innermost range.
void pop() noexcept;
#else
inline void push(const char*) noexcept {}
inline void push(const char*, uint64_t) noexcept {}
inline void pop() noexcept {}
#endif

/// A range as long as it lives.
class Range {
 public:
  explicit Range(const char* message) noexcept { push(message); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { pop(); }
};

}  // namespace seqpar::nvtx
