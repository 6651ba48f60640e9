#include "api/boundary.h"

namespace seqpar {

std::string& threadError() {
  static thread_local std::string text;
  return text;
}

std::string named(const char* call, const std::string& text) {
  return text.rfind(call, 0) == 0 ? text : concat(call, ": ", text);
}

void requirePointer(const char* call, const char* argument, const void* pointer) {
  if (pointer == nullptr) fail(seqparInvalidArgument, call, ": ", argument, " is NULL");
}

}  // namespace seqpar
