// Errors inside the library: thrown as seqpar::Error, converted to a seqparResult_t at the C boundary (src/api).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "seqpar/seqpar.h"

namespace seqpar {

/// Concatenates all arguments into a string.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// A failure: the result for the C caller and a sentence for seqparGetLastError().
class Error : public std::runtime_error {
 public:
  Error(seqparResult_t result, const std::string& text) : std::runtime_error(text), result_(result) {}
  seqparResult_t result() const noexcept { return result_; }

 private:
  seqparResult_t result_;
};

/// Throws Error(result, concat(parts...)).
template <typename... Parts>
[[noreturn]] void fail(seqparResult_t result, const Parts&... parts) {
  throw Error(result, concat(parts...));
}

/// Throws a SystemError with `call` and errno's meaning.
[[noreturn]] void failErrno(const std::string& call);

}  // namespace seqpar
