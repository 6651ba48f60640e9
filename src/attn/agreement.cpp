#include "attn/agreement.h"

#include <bit>
#include <vector>

#include "base/error.h"

namespace seqpar::attn {

void requireAgreement(const char* call, std::span<const NamedNumber> numbers, seqparComm_t comm) {
  if (comm == nullptr) return;
  std::vector<const char*> names;
  std::vector<int64_t> values;
  for (const auto& number : numbers) {
    names.push_back(number.name);
    values.push_back(number.value);
  }
  const auto result = seqparCommCompare(call, names.data(), values.data(), static_cast<int>(values.size()), comm);
  if (result != seqparSuccess) fail(result, seqparGetLastError(comm));
}

int64_t fingerprint(std::span<const int64_t> numbers, int64_t before) {
  uint64_t hash = 14695981039346656037u ^ static_cast<uint64_t>(before);
  for (const int64_t number : numbers) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(number) >> (8 * byte) & 0xff)) * 1099511628211u;
    }
  }
  return static_cast<int64_t>(hash);
}

int64_t bitsOf(float number) {
  return std::bit_cast<uint32_t>(number);
}

}  // namespace seqpar::attn
