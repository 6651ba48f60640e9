#include "api/boundary.h"

namespace seqpar {

std::string& threadError() {
  static thread_local std::string text;
  return text;
}

void requirePointer(const char* call, const char* argument, const void* pointer) {
  if (pointer == nullptr) fail(seqparInvalidArgument, call, ": ", argument, " is NULL");
}

}  // namespace seqpar
