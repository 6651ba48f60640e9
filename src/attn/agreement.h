// What all ranks are to give alike, compared where seqparConfig_t::checkArguments is set.
#pragma once

#include <cstdint>
#include <span>

#include "seqpar/seqpar.h"

namespace seqpar::attn {

/// Arguments for requireAgreement(); names are literals, arrays are read by it only.
inline seqparCompared_t number(const char* name, int64_t value) {
  return {name, seqparComparedNumber, value, 0, nullptr};
}
inline seqparCompared_t real(const char* name, float value) {
  return {name, seqparComparedReal, 0, static_cast<double>(value), nullptr};
}
inline seqparCompared_t array(const char* name, std::span<const int64_t> elements) {
  return {name, seqparComparedArray, static_cast<int64_t>(elements.size()), 0, elements.data()};
}

/// seqparCommCompare() in the name of `call`; nothing without a communicator. Throws Error.
void requireAgreement(const char* call, std::span<const seqparCompared_t> arguments, seqparComm_t comm);

}  // namespace seqpar::attn
