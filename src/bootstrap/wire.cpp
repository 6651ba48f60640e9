#include "bootstrap/wire.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "bootstrap/little_endian.h"

namespace seqpar::wire {
namespace {

constexpr uint32_t kHelloMagic = 0x52505153;      // "SQPR"
constexpr uint32_t kChallengeMagic = 0x43505153;  // "SQPC"
constexpr uint32_t kProofMagic = 0x50505153;      // "SQPP"
constexpr uint32_t kAnswerMagic = 0x41505153;     // "SQPA"
constexpr uint16_t kFrameMark = 0x5153;
constexpr size_t kFrameHeadBytes = 12;
constexpr size_t kRefusalHeadBytes = 16;
constexpr size_t kCallsBytes = 8, kDigestsAt = 16;
constexpr size_t kReportedCallsBytes = kDigestsAt + CallReport::kDigests * sizeof(uint32_t);
constexpr uint64_t kIdMagic = 0x3144495241505153;  // "SQPARID1"
constexpr size_t kIdAddressBytes = 20;
constexpr size_t kIdAddressesAt = 32;
constexpr size_t kIdVersionAt = 112;
constexpr size_t kIdDigestAt = 120;

std::span<const std::byte> bytesOf(const std::string& text, size_t most) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), most)));
}

bool allZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{}; });
}

[[noreturn]] void notAnId() {
  fail(seqparInvalidArgument, "id: not an id from seqparGetUniqueId");
}

}  // namespace

std::string versionText(uint32_t code) {
  return concat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

Bytes encode(const Hello& hello) {
  Bytes bytes(kHelloBytes);
  const auto host = bytesOf(hello.host, kMaxHost);
  put(bytes, 0, kHelloMagic);
  put(bytes, 4, hello.wireVersion);
  put(bytes, 8, hello.libraryVersion);
  put(bytes, 12, hello.rank);
  std::copy(hello.nonce.begin(), hello.nonce.end(), bytes.begin() + 16);
  put(bytes, 32, hello.nranks);
  put(bytes, 36, hello.timeoutMs);
  put(bytes, 40, hello.pid);
  put(bytes, 44, static_cast<uint32_t>(host.size()));
  std::copy(host.begin(), host.end(), bytes.begin() + 48);
  return bytes;
}

std::optional<Hello> decodeHello(std::span<const std::byte, kHelloBytes> bytes) {
  if (take<uint32_t>(bytes, 0) != kHelloMagic) return std::nullopt;
  Hello hello;
  hello.wireVersion = take<uint16_t>(bytes, 4);
  hello.libraryVersion = take<uint32_t>(bytes, 8);
  hello.rank = take<uint32_t>(bytes, 12);
  std::copy_n(bytes.begin() + 16, hello.nonce.size(), hello.nonce.begin());
  if (hello.wireVersion != kVersion) return hello;
  hello.nranks = take<uint32_t>(bytes, 32);
  hello.timeoutMs = take<uint32_t>(bytes, 36);
  hello.pid = take<uint32_t>(bytes, 40);
  const auto hostBytes = take<uint32_t>(bytes, 44);
  if (take<uint16_t>(bytes, 6) != 0 || hostBytes > kMaxHost || hello.nranks > kMaxRanks) return std::nullopt;
  if (hello.timeoutMs > INT32_MAX || !allZero(bytes.subspan(48 + hostBytes))) return std::nullopt;
  hello.host = readable(bytes.subspan(48, hostBytes));
  return hello;
}

Bytes encode(const Challenge& challenge) {
  Bytes bytes(kChallengeBytes);
  put(bytes, 0, kChallengeMagic);
  put(bytes, 4, challenge.wireVersion);
  put(bytes, 8, challenge.libraryVersion);
  std::copy(challenge.nonce.begin(), challenge.nonce.end(), bytes.begin() + 32);
  return bytes;
}

std::optional<Challenge> decodeChallenge(std::span<const std::byte, kChallengeBytes> bytes) {
  if (take<uint32_t>(bytes, 0) != kChallengeMagic) return std::nullopt;
  Challenge challenge;
  challenge.wireVersion = take<uint16_t>(bytes, 4);
  challenge.libraryVersion = take<uint32_t>(bytes, 8);
  if (challenge.wireVersion != kVersion) return challenge;
  if (take<uint16_t>(bytes, 6) != 0 || !allZero(bytes.subspan(12, 20))) return std::nullopt;
  std::copy_n(bytes.begin() + 32, challenge.nonce.size(), challenge.nonce.begin());
  return challenge;
}

Bytes encodeProof(const Digest& proof) {
  Bytes bytes(kProofBytes);
  put(bytes, 0, kProofMagic);
  std::copy(proof.begin(), proof.end(), bytes.begin() + 8);
  return bytes;
}

std::optional<Digest> decodeProof(std::span<const std::byte, kProofBytes> bytes) {
  if (take<uint32_t>(bytes, 0) != kProofMagic || take<uint32_t>(bytes, 4) != 0) return std::nullopt;
  Digest proof;
  std::copy_n(bytes.begin() + 8, proof.size(), proof.begin());
  return proof;
}

Bytes encode(const Answer& answer) {
  const auto text = bytesOf(answer.text, kMaxText);
  Bytes bytes(kAnswerHeadBytes);
  put(bytes, 0, kAnswerMagic);
  put(bytes, 4, answer.wireVersion);
  put(bytes, 6, static_cast<uint16_t>(answer.joined ? 1 : 0));
  put(bytes, 8, answer.libraryVersion);
  put(bytes, 12, static_cast<uint32_t>(text.size()));
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

std::optional<AnswerHead> decodeAnswerHead(std::span<const std::byte, kAnswerHeadBytes> bytes) {
  const auto joined = take<uint16_t>(bytes, 6);
  const auto textBytes = take<uint32_t>(bytes, 12);
  if (take<uint32_t>(bytes, 0) != kAnswerMagic || joined > 1 || textBytes > kMaxText) return std::nullopt;
  AnswerHead head;
  head.answer.wireVersion = take<uint16_t>(bytes, 4);
  head.answer.libraryVersion = take<uint32_t>(bytes, 8);
  head.answer.joined = joined == 1;
  head.textBytes = textBytes;
  return head;
}

void append(Bytes& out, Kind kind, uint32_t sequence, std::span<const std::byte> body) {
  const size_t at = out.size();
  out.resize(at + kFrameHeadBytes);
  put(out, at, kFrameMark);
  put(out, at + 2, static_cast<uint16_t>(kind));
  put(out, at + 4, sequence);
  put(out, at + 8, static_cast<uint32_t>(body.size()));
  out.insert(out.end(), body.begin(), body.end());
}

void appendText(Bytes& out, Kind kind, uint32_t sequence, const std::string& text) {
  append(out, kind, sequence, bytesOf(text, kMaxText));
}

Bytes encode(const Calls& calls) {
  Bytes bytes(calls.report ? kReportedCallsBytes : kCallsBytes);
  put(bytes, 0, calls.enqueued);
  if (!calls.report) return bytes;
  put(bytes, kCallsBytes, calls.report->calls);
  size_t at = kDigestsAt;
  for (const uint32_t digest : calls.report->digests) {
    put(bytes, at, digest);
    at += sizeof(digest);
  }
  return bytes;
}

std::optional<Calls> decodeCalls(std::span<const std::byte> bytes) {
  if (bytes.size() != kCallsBytes && bytes.size() != kReportedCallsBytes) return std::nullopt;
  Calls calls{take<uint64_t>(bytes, 0), std::nullopt};
  if (bytes.size() == kCallsBytes) return calls;
  calls.report.emplace().calls = take<uint64_t>(bytes, kCallsBytes);
  size_t at = kDigestsAt;
  for (uint32_t& digest : calls.report->digests) {
    digest = take<uint32_t>(bytes, at);
    at += sizeof(digest);
  }
  return calls;
}

Bytes encode(const Refusal& refusal) {
  const auto text = bytesOf(refusal.why, kMaxText);
  Bytes bytes(kRefusalHeadBytes);
  put(bytes, 0, refusal.number);
  put(bytes, 8, refusal.calls);
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

std::optional<Refusal> decodeRefusal(std::span<const std::byte> bytes) {
  if (bytes.size() < kRefusalHeadBytes) return std::nullopt;
  Refusal refusal{take<uint64_t>(bytes, 0), take<uint64_t>(bytes, 8), readable(bytes.subspan(kRefusalHeadBytes))};
  if (refusal.number == 0) return std::nullopt;
  return refusal;
}

std::string readable(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '?');
  std::transform(bytes.begin(), bytes.end(), text.begin(), [](std::byte byte) {
    const auto code = std::to_integer<unsigned char>(byte);
    return code < 0x20 || code == 0x7f ? '?' : static_cast<char>(code);
  });
  return text;
}

void FrameReader::append(std::span<const std::byte> bytes) {
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameReader::next() {
  const auto rest = std::span<const std::byte>(bytes_).subspan(begin_);
  if (rest.size() < kFrameHeadBytes) return std::nullopt;
  const auto kind = take<uint16_t>(rest, 2);
  const auto bodyBytes = take<uint32_t>(rest, 8);
  size_t most = 0;
  switch (static_cast<Kind>(kind)) {
    case Kind::Gather:
    case Kind::Gathered:
      most = maxBody_;
      break;
    case Kind::Mismatch:
    case Kind::News:
    case Kind::Missing:
    case Kind::Behind:
      most = kMaxText;
      break;
    case Kind::Calls:
      most = kReportedCallsBytes;
      break;
    case Kind::Refused:
      most = kRefusalHeadBytes + kMaxText;
      break;
    case Kind::Vote:
      most = kMaxVote;
      break;
    case Kind::Heartbeat:
    case Kind::Bye:
    case Kind::AllLeft:
      break;
    default:
      fail(seqparRemoteError, "malformed message: kind ", kind);
  }
  if (take<uint16_t>(rest, 0) != kFrameMark) fail(seqparRemoteError, "malformed message: no mark");
  if (bodyBytes > most) {
    fail(seqparRemoteError, "malformed message: ", bodyBytes, " bytes in kind ", kind, ", expected at most ", most);
  }
  if (rest.size() - kFrameHeadBytes < bodyBytes) return std::nullopt;
  const auto body = rest.subspan(kFrameHeadBytes, bodyBytes);
  begin_ += kFrameHeadBytes + bodyBytes;
  return Frame{static_cast<Kind>(kind), take<uint32_t>(rest, 4), Bytes(body.begin(), body.end())};
}

seqparUniqueId encode(const Rendezvous& rendezvous) {
  std::array<std::byte, SEQPAR_UNIQUE_ID_BYTES> bytes{};
  const size_t count = std::min(rendezvous.addresses.size(), kMaxAddresses);
  put(bytes, 0, kIdMagic);
  put(bytes, 8, kVersion);
  put(bytes, 10, static_cast<uint16_t>(count));
  put(bytes, 12, rendezvous.port);
  std::copy(rendezvous.token.begin(), rendezvous.token.end(), bytes.begin() + 16);
  for (size_t i = 0; i < count; ++i) {
    const IpAddress& address = rendezvous.addresses[i];
    const size_t at = kIdAddressesAt + i * kIdAddressBytes;
    put(bytes, at, static_cast<uint32_t>(address.version));
    std::memcpy(bytes.data() + at + 4, address.bytes.data(), address.bytes.size());
  }
  put(bytes, kIdVersionAt, static_cast<uint32_t>(SEQPAR_VERSION_CODE));
  put(bytes, kIdDigestAt, digest(std::span(bytes).first(kIdDigestAt)));
  seqparUniqueId id;
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

Rendezvous decodeRendezvous(const seqparUniqueId& id) {
  const auto bytes = std::as_bytes(std::span(id.internal));
  if (take<uint64_t>(bytes, 0) != kIdMagic) notAnId();
  if (take<uint64_t>(bytes, kIdDigestAt) != digest(bytes.first(kIdDigestAt))) notAnId();
  if (take<uint16_t>(bytes, 8) != kVersion) {
    fail(seqparInvalidArgument, "id: created by seqpar ", versionText(take<uint32_t>(bytes, kIdVersionAt)),
         ", which this seqpar ", versionText(SEQPAR_VERSION_CODE), " does not support");
  }
  Rendezvous rendezvous;
  const auto count = take<uint16_t>(bytes, 10);
  rendezvous.port = take<uint16_t>(bytes, 12);
  if (count == 0 || count > kMaxAddresses || rendezvous.port == 0) notAnId();
  std::copy_n(bytes.begin() + 16, rendezvous.token.size(), rendezvous.token.begin());
  for (size_t i = 0; i < count; ++i) {
    const size_t at = kIdAddressesAt + i * kIdAddressBytes;
    const auto version = take<uint32_t>(bytes, at);
    if (version != 4 && version != 6) notAnId();
    IpAddress address;
    address.version = static_cast<int>(version);
    std::memcpy(address.bytes.data(), bytes.data() + at + 4, address.bytes.size());
    rendezvous.addresses.push_back(address);
  }
  return rendezvous;
}

}  // namespace seqpar::wire
