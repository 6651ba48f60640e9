#include "base/arguments.h"

namespace seqpar {

void requirePointer(const char* call, const char* argument, const void* pointer) {
  if (pointer == nullptr) fail(seqparInvalidArgument, call, ": ", argument, " is NULL");
}

void requireApart(const char* call, const Buffer& a, const Buffer& b, bool sameIsFine) {
  if (a.data == nullptr || b.data == nullptr || a.bytes == 0 || b.bytes == 0) return;
  if (sameIsFine && a.data == b.data) return;
  const auto beginA = reinterpret_cast<uintptr_t>(a.data);
  const auto beginB = reinterpret_cast<uintptr_t>(b.data);
  if (beginA < beginB + b.bytes && beginB < beginA + a.bytes) {
    fail(seqparInvalidArgument, call, ": ", a.name, " (", a.data, ", ", a.bytes, " bytes) overlaps ", b.name, " (",
         b.data, ", ", b.bytes, " bytes); expected ", sameIsFine ? "the same address or no overlap" : "no overlap");
  }
}

}  // namespace seqpar
