#include "comm/named_value.h"

#include <array>
#include <charconv>

#include "base/error.h"

namespace seqpar {
namespace {

template <typename Number>
std::string shortest(Number number) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

/// The shortest text that identifies the value in its type; a value that a float can represent was a float.
std::string shortestReal(double real) {
  const auto narrow = static_cast<float>(real);
  return static_cast<double>(narrow) == real ? shortest(narrow) : shortest(real);
}

}  // namespace

uint16_t digestOf(std::string_view call, std::span<const NamedValue> values) noexcept {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15U;
  uint64_t sum = call.size();
  for (const char letter : call) sum = sum * kFactor + static_cast<unsigned char>(letter);
  for (const NamedValue& value : values) sum = (sum ^ sum >> 32) * kFactor + static_cast<uint64_t>(value.value);
  return static_cast<uint16_t>((sum ^ sum >> 32) * kFactor >> 48);
}

std::string inWords(NamedValue::Kind kind, int64_t value) {
  switch (kind) {
    case NamedValue::Kind::Number:
      return shortest(value);
    case NamedValue::Kind::Real:
      return shortestReal(std::bit_cast<double>(value));
    case NamedValue::Kind::Array:
      break;
  }
  return concat("an array with the fingerprint ", std::hex, static_cast<uint64_t>(value));
}

}  // namespace seqpar
