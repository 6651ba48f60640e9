// Everything that travels over the bootstrap's connections, to bytes and back. Numbers are little endian. Whatever the
// bytes, decoding reads inside them and gives either a message whose every field is within its bounds, or says no.
//
// A connection begins with a Hello, is answered by an Answer, and then carries frames both ways. Hello and Answer keep
// their layout in all versions, so that different versions can name each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/address.h"
#include "bootstrap/token.h"
#include "seqpar/seqpar.h"

namespace seqpar::wire {

using Bytes = std::vector<std::byte>;

constexpr uint16_t kVersion = 2;
constexpr uint32_t kMaxRanks = 65536;
constexpr size_t kMaxHost = 80;
constexpr size_t kMaxText = 4096;
constexpr size_t kMaxPiece = size_t{1} << 26;   ///< largest contribution of one rank to a gather
constexpr size_t kMaxResult = size_t{1} << 30;  ///< largest result of a gather

/// "0.1.0" for a SEQPAR_VERSION_CODE.
std::string versionText(uint32_t code);

/// The first bytes of a rank's connection.
struct Hello {
  uint16_t wireVersion = kVersion;
  uint32_t libraryVersion = SEQPAR_VERSION_CODE;
  Token token{};
  uint32_t rank = 0;
  uint32_t nranks = 0;
  uint32_t timeoutMs = 0;
  uint32_t pid = 0;
  std::string host;  ///< cut to kMaxHost
};
constexpr size_t kHelloBytes = 128;
Bytes encode(const Hello& hello);
/// Of another wire version only wireVersion, libraryVersion, rank and token are given.
std::optional<Hello> decodeHello(std::span<const std::byte, kHelloBytes> bytes);

/// What a rank is told when all have arrived, or when they cannot come together.
struct Answer {
  uint16_t wireVersion = kVersion;
  uint32_t libraryVersion = SEQPAR_VERSION_CODE;
  bool joined = false;
  std::string text;  ///< joined: who serves; else: why not. Cut to kMaxText
};
constexpr size_t kAnswerHeadBytes = 16;
Bytes encode(const Answer& answer);
/// An Answer without its text, and the text's length.
struct AnswerHead {
  Answer answer;
  size_t textBytes = 0;
};
std::optional<AnswerHead> decodeAnswerHead(std::span<const std::byte, kAnswerHeadBytes> bytes);

enum class Kind : uint16_t {
  Heartbeat = 1,
  Gather = 2,    ///< rank to root: its piece
  Gathered = 3,  ///< root to rank: all pieces
  Mismatch = 4,  ///< root to rank: the pieces differ in size; a text
  News = 5,      ///< a failure; a text
  Bye = 6,       ///< rank to root: it leaves
  AllLeft = 7,   ///< root to rank: all have left
  Missing = 8,   ///< root to rank: who has not come to what the rank waits for; a text
  Calls = 9,     ///< rank to root: how many calls it has enqueued; encodeCalls()
  Behind = 10    ///< root to rank: who has enqueued fewer calls than others; a text, empty when nobody has any more
};

struct Frame {
  Kind kind = Kind::Heartbeat;
  uint32_t sequence = 0;  ///< of the gather
  Bytes body;
};

/// Appends a frame to `out`.
void append(Bytes& out, Kind kind, uint32_t sequence = 0, std::span<const std::byte> body = {});
/// Appends a frame with a text, cut to kMaxText.
void appendText(Bytes& out, Kind kind, uint32_t sequence, const std::string& text);

/// The body of Calls.
constexpr size_t kCallsBytes = 8;
Bytes encodeCalls(uint64_t calls);
uint64_t decodeCalls(std::span<const std::byte, kCallsBytes> bytes);

/// A received text, fit to be shown: control characters become '?'.
std::string readable(std::span<const std::byte> bytes);

/// Takes a stream of bytes apart. It holds no more than arrived.
class FrameReader {
 public:
  /// Bodies larger than `maxBody` are malformed.
  explicit FrameReader(size_t maxBody) : maxBody_(maxBody) {}

  void append(std::span<const std::byte> bytes);
  /// The next whole frame. Throws RemoteError for bytes that are none; the stream is of no use afterwards.
  std::optional<Frame> next();

 private:
  size_t maxBody_;
  size_t begin_ = 0;
  Bytes bytes_;
};

/// Where ranks meet, and the token that they present there.
struct Rendezvous {
  std::vector<IpAddress> addresses;  ///< 1..kMaxAddresses, best first
  uint16_t port = 0;
  Token token{};
};
constexpr size_t kMaxAddresses = 4;
seqparUniqueId encode(const Rendezvous& rendezvous);
/// InvalidArgument for anything but the bytes of encode().
Rendezvous decodeRendezvous(const seqparUniqueId& id);

}  // namespace seqpar::wire
