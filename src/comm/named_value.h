// An argument of a call, for comparisons and records.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace seqpar {

struct NamedValue {
  enum class Kind : uint8_t { Number, Real, Array };

  const char* name;  ///< a literal
  int64_t value;     ///< the bits of a real, the fingerprint of an array
  Kind kind = Kind::Number;
  std::span<const int64_t> elements{};  ///< of an array; not used after the comparison has been created
};

/// A hash of an array, different for different arrays with high probability (FNV-1a).
inline int64_t fingerprint(std::span<const int64_t> elements) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int64_t element : elements) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(element) >> (8 * byte) & 0xff)) * 0x100000001b3u;
    }
  }
  return static_cast<int64_t>(hash);
}

inline NamedValue namedReal(const char* name, double value) {
  return {name, std::bit_cast<int64_t>(value), NamedValue::Kind::Real};
}
inline NamedValue namedArray(const char* name, std::span<const int64_t> elements) {
  return {name, fingerprint(elements), NamedValue::Kind::Array, elements};
}

/// A digest of a call's name and values for the marks of its messages (Mailbox::mark()).
uint16_t digestOf(std::string_view call, std::span<const NamedValue> values) noexcept;

/// Integers and reals as values, arrays as their fingerprints.
std::string inWords(NamedValue::Kind kind, int64_t value);

}  // namespace seqpar
