#include "attn/agreement.h"

#include "base/error.h"

namespace seqpar::attn {

void requireAgreement(const char* call, std::span<const seqparCompared_t> arguments, seqparComm_t comm) {
  if (comm == nullptr) return;
  const auto result = seqparCommCompare(call, arguments.data(), static_cast<int>(arguments.size()), comm);
  if (result != seqparSuccess) fail(result, seqparGetLastError(comm));
}

OuterCall::OuterCall(const char* call, std::span<const seqparCompared_t> arguments, seqparComm_t comm, void* stream) {
  if (comm == nullptr) return;
  const auto result = seqparCommCallBegin(call, arguments.data(), static_cast<int>(arguments.size()), comm, stream);
  if (result != seqparSuccess) fail(result, seqparGetLastError(comm));
}

seqparResult_t endCommunicator(const char* call, seqparComm_t comm, seqparResult_t result,
                               const std::string& text) noexcept {
  if (comm == nullptr) return result;
  seqparResult_t state = seqparSuccess;
  if (seqparCommGetAsyncError(comm, &state) == seqparInvalidArgument) return seqparRemoteError;
  try {
    seqparCommFail(comm, text.starts_with(call) ? text.c_str() : concat(call, ": ", text).c_str());
  } catch (const std::bad_alloc&) {
    seqparCommFail(comm, call);
  }
  return result;
}

}  // namespace seqpar::attn
