// The secret token of a connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace seqpar {

using Token = std::array<std::byte, 16>;

/// From the system's random source.
Token randomToken();

/// Deterministic: the text's SHA-256. A token is as secret as the text.
Token deriveToken(std::string_view text);

/// The secret for `purpose` that the owners of `secret` derive, with a public `salt`. It does not reveal `secret`.
Token deriveToken(const Token& secret, std::string_view purpose, std::span<const std::byte> salt);

/// Takes the same time for any difference between the tokens.
bool equalTokens(const Token& one, const Token& other);

/// 64 bits that depend on every bit of `bytes` (FNV-1a, with initial value `seed`).
uint64_t digest(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace seqpar
