#include "attn/agreement.h"

#include <bit>

#include "base/error.h"

namespace seqpar::attn {

int64_t digestOf(std::span<const seqparCompared_t> arguments) {
  uint64_t digest = 0;
  const auto add = [&](uint64_t value) { digest = digest * 1000003 + value; };
  for (const auto& each : arguments) {
    add(each.kind == seqparComparedReal ? std::bit_cast<uint64_t>(each.real) : static_cast<uint64_t>(each.number));
    if (each.kind != seqparComparedArray) continue;
    for (int64_t i = 0; i < each.number; ++i) add(static_cast<uint64_t>(each.array[i]));
  }
  return static_cast<int64_t>(digest);
}

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
