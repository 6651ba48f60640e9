// Reading structures that cross the C interface and may come from an older or newer header.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace seqpar {

/// Size, magic and version: what every such structure begins with.
struct VersionedHead {
  size_t size;
  unsigned magic;
  unsigned version;
};

/// Checks the head of *given, named `argument` in errors. Another size than this library's is another version's.
template <typename Struct>
VersionedHead checkVersioned(const char* call, const char* argument, const Struct* given) {
  if (given == nullptr) fail(seqparInvalidArgument, call, ": ", argument, " is NULL");
  VersionedHead head{};
  std::memcpy(&head, static_cast<const void*>(given), sizeof(head));
  if (head.magic != SEQPAR_STRUCT_MAGIC) {
    fail(seqparInvalidArgument, call, ": ", argument, "->magic is ", head.magic, ", expected ", SEQPAR_STRUCT_MAGIC,
         ", which its INITIALIZER macro sets");
  }
  if (head.size < sizeof(head)) {
    fail(seqparInvalidArgument, call, ": ", argument, "->size is ", head.size, ", expected ", sizeof(Struct),
         ", which its INITIALIZER macro sets, or another version's size, at least ", sizeof(head));
  }
  return head;
}

/// *given where its header knew the field, `defaults` elsewhere; fields newer than this library are ignored.
template <typename Struct>
Struct readVersioned(const char* call, const char* argument, const Struct* given, const Struct& defaults) {
  const auto head = checkVersioned(call, argument, given);
  Struct out = defaults;
  std::memcpy(static_cast<void*>(&out), given, std::min(head.size, sizeof(Struct)));
  return out;
}

/// Stores `value` in *out as far as the caller's header knows the fields; the caller's head stays.
template <typename Struct>
void writeVersioned(const char* call, const char* argument, Struct* out, const Struct& value) {
  const auto head = checkVersioned(call, argument, out);
  std::memcpy(static_cast<void*>(out), &value, std::min(head.size, sizeof(Struct)));
  std::memcpy(static_cast<void*>(out), &head, sizeof(head));
}

}  // namespace seqpar
