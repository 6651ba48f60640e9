// The language of the root's fuzzer: the first byte of an input selects its kind; the rest of a script consists of
// steps. A step is one byte (connection * 8 + action) and its data. Shared by the fuzzer and the generator of its
// initial inputs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace seqpar::fuzz {

enum class Input : uint8_t { Parsers = 0, Script = 1, Records = 2, Vote = 3 };
constexpr uint8_t kInputs = 4;

enum class Step : uint8_t {
  Open = 0,     ///< a new connection
  Hello = 1,    ///< rank, nranks, timeout in 10 ms, flaw: a handshake, right if the flaw is 0 (enum Flaw)
  Raw = 2,      ///< length, bytes: sent unchanged
  Frame = 3,    ///< kind, sequence, length, bytes: in a frame
  Close = 4,    ///< the connection ends
  Pass = 5,     ///< 10 ms units: time passes
  Drain = 6,    ///< the server sends what it may
  Foreign = 7,  ///< rank, wire version, library version: a handshake of another version
};
/// What is wrong with a handshake.
enum class Flaw : uint8_t { None = 0, Secret = 1, Replay = 2, Reflection = 3, Truncated = 4, Changed = 5 };
constexpr uint8_t kFlaws = 6;
constexpr uint8_t kSteps = 8;
constexpr size_t kConnections = 8;

}  // namespace seqpar::fuzz
