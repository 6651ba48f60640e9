// Arguments that must be equal on all ranks, compared if seqparConfig_t::checkArguments is set.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "seqpar/seqpar.h"

namespace seqpar::attn {

/// Arguments for requireAgreement(); names are literals, and arrays are read only during that call.
inline seqparCompared_t number(const char* name, int64_t value) {
  return {name, seqparComparedNumber, value, 0, nullptr};
}
inline seqparCompared_t real(const char* name, float value) {
  return {name, seqparComparedReal, 0, static_cast<double>(value), nullptr};
}
inline seqparCompared_t array(const char* name, std::span<const int64_t> elements) {
  return {name, seqparComparedArray, static_cast<int64_t>(elements.size()), 0, elements.data()};
}

/// A digest of arguments: one argument by which the passes of a plan are compared.
int64_t digestOf(std::span<const seqparCompared_t> arguments);

/// A call of all ranks that consists of parts, from seqparCommCallBegin() to seqparCommCallEnd(); no-op without a
/// communicator. Throws Error.
class OuterCall {
 public:
  OuterCall(const char* call, std::span<const seqparCompared_t> arguments, seqparComm_t comm, void* stream);
  OuterCall(const OuterCall&) = delete;
  OuterCall& operator=(const OuterCall&) = delete;
  ~OuterCall() { seqparCommCallEnd(); }
};

/// Ends `comm` (unless null), because `call` has failed on this rank. Returns the result for the caller: RemoteError
/// instead of `result` if another thread has aborted the communicator.
seqparResult_t endCommunicator(const char* call, seqparComm_t comm, seqparResult_t result,
                               const std::string& text) noexcept;

/// seqparCommCompare() in the name of `call`; no-op without a communicator. Throws Error.
void requireAgreement(const char* call, std::span<const seqparCompared_t> arguments, seqparComm_t comm);

}  // namespace seqpar::attn
