#include "attn/agreement.h"

#include "base/error.h"

namespace seqpar::attn {

void requireAgreement(const char* call, std::span<const seqparCompared_t> arguments, seqparComm_t comm) {
  if (comm == nullptr) return;
  const auto result = seqparCommCompare(call, arguments.data(), static_cast<int>(arguments.size()), comm);
  if (result != seqparSuccess) fail(result, seqparGetLastError(comm));
}

}  // namespace seqpar::attn
