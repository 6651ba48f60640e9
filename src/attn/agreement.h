// What all ranks are to give alike, compared where seqparConfig_t::checkArguments is set.
#pragma once

#include <cstdint>
#include <span>

#include "seqpar/seqpar.h"

namespace seqpar::attn {

/// An argument; the name is a literal.
struct NamedNumber {
  const char* name;
  int64_t value;
};

/// seqparCommCompare() in the name of `call`; nothing without a communicator. Throws Error.
void requireAgreement(const char* call, std::span<const NamedNumber> numbers, seqparComm_t comm);

/// A number for an array, which differs where arrays differ (FNV-1a).
int64_t fingerprint(std::span<const int64_t> numbers, int64_t before = 0);

/// A number for the bits of a float.
int64_t bitsOf(float number);

}  // namespace seqpar::attn
