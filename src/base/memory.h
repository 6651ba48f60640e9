// Failed allocations: errors that say how many bytes were requested, and for what.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>
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

/// A text that needs no memory, for the handlers of errors. Cut off at its size.
class FixedText {
 public:
  FixedText(std::initializer_list<std::string_view> parts) noexcept {
    for (const auto part : parts) {
      const size_t count = std::min(part.size(), chars_.size() - size_);
      std::copy_n(part.begin(), count, chars_.begin() + static_cast<std::ptrdiff_t>(size_));
      size_ += count;
    }
  }
  operator std::string_view() const noexcept { return {chars_.data(), size_}; }  // NOLINT(*-explicit-*)

 private:
  std::array<char, 1024> chars_{};
  size_t size_ = 0;
};

/// Reserve this for a text that assignText() shall set even without memory.
constexpr size_t kReservedText = 512;

inline void reserveText(std::string& text) {
  if (text.capacity() < kReservedText) text.reserve(kReservedText);
}

/// into = text; without memory, the part of `text` that `into` has space for.
inline void assignText(std::string& into, std::string_view text) noexcept {
  try {
    into.assign(text);
  } catch (const std::bad_alloc&) {
    into.assign(text.substr(0, into.capacity()));
  }
}

/// into = "call: text", or `text` if it starts with the call.
inline void assignCallText(std::string& into, std::string_view call, std::string_view text) noexcept {
  if (text.starts_with(call)) return assignText(into, text);
  try {
    into = concat(call, ": ", text);
    reserveText(into);
  } catch (const std::bad_alloc&) {
    assignText(into, FixedText{call, ": ", text});
  }
}

}  // namespace seqpar
