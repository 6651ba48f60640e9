// The language of the root's fuzzer: the first byte of an input selects its kind; the rest of a script consists of
// steps. A step is one byte (connection * 8 + action) and its data. Shared by the fuzzer and the generator of its
// initial inputs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace seqpar::fuzz {

enum class Input : uint8_t { Parsers = 0, Script = 1 };
constexpr uint8_t kInputs = 2;

enum class Step : uint8_t {
  Open = 0,     ///< a new connection
  Hello = 1,    ///< rank, nranks, timeout in 10 ms: a hello with the right token
  Raw = 2,      ///< length, bytes: sent unchanged
  Frame = 3,    ///< kind, sequence, length, bytes: in a frame
  Close = 4,    ///< the connection ends
  Pass = 5,     ///< 10 ms units: time passes
  Drain = 6,    ///< the server sends what it may
  Foreign = 7,  ///< rank, wire version, library version: a hello of another version, with the right token
};
constexpr uint8_t kSteps = 8;
constexpr size_t kConnections = 8;

}  // namespace seqpar::fuzz
