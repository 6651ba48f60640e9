// Reading structures that cross the C interface and may use an older or newer header.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace seqpar {

/// The first fields of every such structure: size, magic and version.
struct VersionedHead {
  size_t size;
  unsigned magic;
  unsigned version;
};

/// More than any structure of any version has.
constexpr size_t kMostStructBytes = size_t{1} << 16;

/// Checks the head of *given, named `argument` in errors: structures only grow from version to version.
template <typename Struct>
VersionedHead checkVersioned(const char* call, const char* argument, const Struct* given) {
  if (given == nullptr) fail(seqparInvalidArgument, call, ": ", argument, " is NULL");
  VersionedHead head{};
  std::memcpy(&head, static_cast<const void*>(given), sizeof(head));
  if (head.magic != SEQPAR_STRUCT_MAGIC) {
    fail(seqparInvalidArgument, call, ": ", argument, "->magic is ", head.magic, ", expected ", SEQPAR_STRUCT_MAGIC,
         ", which its INITIALIZER macro sets");
  }
  constexpr unsigned kNow = SEQPAR_VERSION_CODE;
  if (head.version == 0) {
    fail(seqparInvalidArgument, call, ": ", argument, "->version is 0, expected ", kNow,
         ", which its INITIALIZER macro sets, or another version");
  }
  const size_t least = head.version < kNow ? sizeof(head) : sizeof(Struct);
  const size_t most = head.version > kNow ? kMostStructBytes : sizeof(Struct);
  if (head.size < least || head.size > most) {
    fail(seqparInvalidArgument, call, ": ", argument, "->size is ", head.size, ", expected ", sizeof(Struct),
         ", which its INITIALIZER macro sets",
         least == most ? std::string() : concat(", or ", least, " to ", most, " of version ", head.version));
  }
  return head;
}

/// The fields of *given that its header defines, `defaults` for the others; ignores fields newer than this library.
template <typename Struct>
Struct readVersioned(const char* call, const char* argument, const Struct* given, const Struct& defaults) {
  const auto head = checkVersioned(call, argument, given);
  Struct out = defaults;
  std::memcpy(static_cast<void*>(&out), given, std::min(head.size, sizeof(Struct)));
  return out;
}

/// Stores `value` in *out as far as the caller's header defines the fields; the caller's head stays.
template <typename Struct>
void writeVersioned(const char* call, const char* argument, Struct* out, const Struct& value) {
  const auto head = checkVersioned(call, argument, out);
  std::memcpy(static_cast<void*>(out), &value, std::min(head.size, sizeof(Struct)));
  std::memcpy(static_cast<void*>(out), &head, sizeof(head));
}

}  // namespace seqpar
