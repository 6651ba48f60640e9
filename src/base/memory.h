// Failed allocations: errors that say how many bytes were requested, and for what.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"

namespace seqpar {

/// Throws a SystemError. `left`: text about the remaining memory.
[[noreturn]] inline void failNoMemory(const char* what, size_t bytes, const std::string& left = {}) {
  fail(seqparSystemError, "no memory: ", bytes, " bytes for ", what, left.empty() ? "" : "; ", left);
}

/// The result of allocate(); calls failNoMemory() if it throws std::bad_alloc.
template <typename Allocate>
auto allocateFor(const char* what, size_t bytes, Allocate&& allocate) {
  try {
    return std::forward<Allocate>(allocate)();
  } catch (const std::bad_alloc&) {
    failNoMemory(what, bytes);
  }
}

/// Error text for failed allocations of small objects, where the size is unknown.
constexpr const char* kNoMemory = "no memory: a few bytes for objects of the library";

}  // namespace seqpar
