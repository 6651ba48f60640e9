// Memory that cannot be had: errors that say how much was wanted, and for what.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"

namespace seqpar {

/// Throws a SystemError. `left`: what is known of the memory that is left.
[[noreturn]] inline void failNoMemory(const char* what, size_t bytes, const std::string& left = {}) {
  fail(seqparSystemError, "no memory: ", bytes, " bytes for ", what, left.empty() ? "" : "; ", left);
}

/// What allocate() returns; failNoMemory() where it throws std::bad_alloc.
template <typename Allocate>
auto allocateFor(const char* what, size_t bytes, Allocate&& allocate) {
  try {
    return std::forward<Allocate>(allocate)();
  } catch (const std::bad_alloc&) {
    failNoMemory(what, bytes);
  }
}

/// What is said where small objects find no memory, which nobody counts.
constexpr const char* kNoMemory = "no memory: a few bytes for objects of the library";

}  // namespace seqpar
