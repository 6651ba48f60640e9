// Annotations of an emulated CTA for ThreadSanitizer: each thread is a separate strand, and only barriers order
// strands, so that accesses without a barrier between them are races, in whatever order the emulator ran them. The
// emulator annotates the accesses of copies and products by the GPU's asynchronous units. Without ThreadSanitizer, all
// functions are empty.
#pragma once

#include <cstddef>
#include <utility>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SEQPAR_STRANDS
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_read_range(void* address, unsigned long bytes);   // NOLINT: the sanitizer's names
void __tsan_write_range(void* address, unsigned long bytes);  // NOLINT
}
#endif
#endif

namespace seqpar::test {

#ifdef SEQPAR_STRANDS

/// A thread, as the sanitizer counts them.
class Strand {
 public:
  Strand() : fiber_(__tsan_create_fiber(0)), own_(true) {}
  Strand(Strand&& other) noexcept : fiber_(other.fiber_), own_(std::exchange(other.own_, false)) {}
  Strand& operator=(Strand&&) = delete;
  ~Strand() {
    if (own_) __tsan_destroy_fiber(fiber_);
  }
  static Strand current() { return Strand(__tsan_get_current_fiber()); }

  /// Continues execution as this strand.
  void enter() const { __tsan_switch_to_fiber(fiber_, __tsan_switch_to_fiber_no_sync); }

 private:
  explicit Strand(void* fiber) : fiber_(fiber) {}
  void* fiber_;
  bool own_ = false;
};

/// Orders this strand's accesses so far before those of strands that call follow(mark) later.
inline void lead(char& mark) {
  __tsan_release(&mark);
}
inline void follow(char& mark) {
  __tsan_acquire(&mark);
}
inline void reads(const void* from, size_t bytes) {
  __tsan_read_range(const_cast<void*>(from), bytes);
}
inline void writes(void* to, size_t bytes) {
  __tsan_write_range(to, bytes);
}

#else

class Strand {
 public:
  static Strand current() { return {}; }
  void enter() const {}
};
inline void lead(char&) {}
inline void follow(char&) {}
inline void reads(const void*, size_t) {}
inline void writes(void*, size_t) {}

#endif

}  // namespace seqpar::test
