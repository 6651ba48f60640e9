// The secret that a connection must present.
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

/// The same for the same text. Hides nothing: a token is as secret as the text.
Token deriveToken(std::string_view text);

/// Takes the same time wherever the tokens differ.
bool equalTokens(const Token& one, const Token& other);

/// 64 bits that change with any bit of `bytes` (FNV-1a, started from `seed`).
uint64_t digest(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace seqpar
