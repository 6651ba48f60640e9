#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace seqpar {

void failErrno(const std::string& call) {
  const int code = errno;
  fail(seqparSystemError, call, ": ", std::generic_category().message(code));
}

}  // namespace seqpar
