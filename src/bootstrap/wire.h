// Encoding of all data on the bootstrap's connections. Integers are little endian. For any input, decoding reads within
// bounds and returns either a message with every field in its range, or nothing.
//
// A connection starts with a Hello, a Challenge and a Proof (handshake.h). An Answer and frames in both directions
// follow, all in records. Hello has the same layout in all versions, so that different versions can report each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "bootstrap/address.h"
#include "bootstrap/call_chain.h"
#include "bootstrap/call_sequence.h"
#include "bootstrap/token.h"
#include "seqpar/seqpar.h"

namespace seqpar::wire {

using Bytes = std::vector<std::byte>;

constexpr uint16_t kVersion = 4;
constexpr uint32_t kMaxRanks = 65536;
constexpr size_t kMaxHost = 80;
constexpr size_t kMaxText = 4096;
constexpr size_t kMaxShard = size_t{1} << 26;   ///< largest contribution of one rank to a gather
constexpr size_t kMaxResult = size_t{1} << 30;  ///< largest result of a gather
constexpr size_t kMaxVote = 2 * kMaxRanks / 8 + 256;

/// "0.1.0" for a SEQPAR_VERSION_CODE.
std::string versionText(uint32_t code);

/// The first bytes of a rank's connection.
struct Hello {
  uint16_t wireVersion = kVersion;
  uint32_t libraryVersion = SEQPAR_VERSION_CODE;
  Token nonce{};  ///< of this connection
  uint32_t rank = 0;
  uint32_t nranks = 0;
  uint32_t timeoutMs = 0;
  uint32_t pid = 0;
  std::string host;  ///< truncated to kMaxHost
};
constexpr size_t kHelloBytes = 128;
Bytes encode(const Hello& hello);
/// For another wire version only wireVersion, libraryVersion, rank and nonce are set.
std::optional<Hello> decodeHello(std::span<const std::byte, kHelloBytes> bytes);

/// The root's reply to a Hello.
struct Challenge {
  uint16_t wireVersion = kVersion;
  uint32_t libraryVersion = SEQPAR_VERSION_CODE;
  Token nonce{};  ///< of this connection
};
constexpr size_t kChallengeBytes = 48;
Bytes encode(const Challenge& challenge);
/// For another wire version only the versions are set.
std::optional<Challenge> decodeChallenge(std::span<const std::byte, kChallengeBytes> bytes);

/// The rank's reply to a Challenge.
constexpr size_t kProofBytes = 40;
Bytes encodeProof(const Digest& proof);
std::optional<Digest> decodeProof(std::span<const std::byte, kProofBytes> bytes);

/// The root's reply when all ranks have arrived, or when they cannot connect.
struct Answer {
  uint16_t wireVersion = kVersion;
  uint32_t libraryVersion = SEQPAR_VERSION_CODE;
  bool joined = false;
  std::string text;  ///< joined: the serving rank; otherwise: the reason. Truncated to kMaxText
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
  Missing = 8,   ///< root to rank: ranks missing in the current wait; a text
  Calls = 9,     ///< rank to root: its calls so far; encode(Calls)
  Behind = 10,   ///< root to rank: ranks with fewer enqueued calls than others; a text, empty if none
  Refused = 11,  ///< a rank refused a call; encode(Refusal)
  Vote = 12      ///< between survivors; encodeVote()
};

struct Frame {
  Kind kind = Kind::Heartbeat;
  uint32_t sequence = 0;  ///< of the gather
  Bytes body;
};

/// Appends a frame to `out`.
void append(Bytes& out, Kind kind, uint32_t sequence = 0, std::span<const std::byte> body = {});
/// Appends a frame with a text, truncated to kMaxText.
void appendText(Bytes& out, Kind kind, uint32_t sequence, const std::string& text);

/// The body of Calls.
struct Calls {
  uint64_t enqueued = 0;
  std::optional<CallReport> report;  ///< of the collective ones
};
Bytes encode(const Calls& calls);
/// Nothing for a body of another size.
std::optional<Calls> decodeCalls(std::span<const std::byte> bytes);

/// The body of Refused; the text is cut to kMaxText.
Bytes encode(const Refusal& refusal);
/// Nothing for a body without the two counts.
std::optional<Refusal> decodeRefusal(std::span<const std::byte> bytes);

/// A received text for display: control characters become '?'.
std::string readable(std::span<const std::byte> bytes);

/// Parses a stream of bytes into frames. It stores no more than arrived.
class FrameReader {
 public:
  /// Bodies larger than `maxBody` are malformed.
  explicit FrameReader(size_t maxBody) : maxBody_(maxBody) {}

  void append(std::span<const std::byte> bytes);
  /// The next complete frame. Throws RemoteError for malformed bytes; the stream is unusable afterwards.
  std::optional<Frame> next();

 private:
  size_t maxBody_;
  size_t begin_ = 0;
  Bytes bytes_;
};

/// The address of a rendezvous, and its secret or, if that is derived, its salt.
struct Rendezvous {
  std::vector<IpAddress> addresses;  ///< 1..kMaxAddresses, best first
  uint16_t port = 0;
  Token token{};
};
constexpr size_t kMaxAddresses = 4;
seqparUniqueId encode(const Rendezvous& rendezvous);
/// Throws InvalidArgument for bytes that encode() cannot produce.
Rendezvous decodeRendezvous(const seqparUniqueId& id);

}  // namespace seqpar::wire
