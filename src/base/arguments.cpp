#include "base/arguments.h"

namespace seqpar {

void failOverlap(const char* call, const Buffer& a, const Buffer& b, bool sameIsFine) {
  fail(seqparInvalidArgument, call, ": ", a.name, " (", a.data, ", ", a.bytes, " bytes) overlaps ", b.name, " (",
       b.data, ", ", b.bytes, " bytes); expected ", sameIsFine ? "the same address or no overlap" : "no overlap");
}

void failArray(const char* call, const char* argument, const void* data, size_t bytes, size_t alignment) {
  if (bytes > kMostBytes) {
    fail(seqparInvalidArgument, call, ": ", argument, " has ", bytes, " bytes, expected at most ", kMostBytes);
  }
  if (reinterpret_cast<uintptr_t>(data) > UINTPTR_MAX - bytes) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", data, " with ", bytes,
         " bytes, expected it to end before the last address");
  }
  fail(seqparInvalidArgument, call, ": ", argument, " is ", data,
       ", expected an address that is a multiple of its elements' ", alignment, " bytes");
}

}  // namespace seqpar
