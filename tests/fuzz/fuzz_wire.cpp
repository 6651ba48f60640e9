// Arbitrary bytes for all code that reads bytes from a connection: the decoders, and the root with several connections,
// some of them with the token.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "bootstrap/root.h"
#include "bootstrap/succession.h"
#include "bootstrap/vote_wire.h"
#include "wire_script.h"

using namespace seqpar;

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

/// Parses an input; reads zeros after its end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    const auto got = take(1);
    return got.empty() ? uint8_t{0} : std::to_integer<uint8_t>(got[0]);
  }
  std::span<const std::byte> take(size_t most) {
    const auto got = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(got.size());
    return got;
  }

 private:
  std::span<const std::byte> bytes_;
};

void parse(std::span<const std::byte> bytes) {
  if (bytes.size() >= wire::kHelloBytes) {
    const auto hello = wire::decodeHello(bytes.first<wire::kHelloBytes>());
    if (hello && hello->wireVersion == wire::kVersion) {
      require(hello->nranks <= wire::kMaxRanks && hello->host.size() <= wire::kMaxHost, "a hello's bounds");
      const auto again = wire::encode(*hello);
      const auto back = wire::decodeHello(std::span<const std::byte, wire::kHelloBytes>(again));
      require(back && back->rank == hello->rank && back->host == hello->host, "a hello's way back");
    }
  }
  if (bytes.size() >= wire::kChallengeBytes) {
    const auto challenge = wire::decodeChallenge(bytes.first<wire::kChallengeBytes>());
    if (challenge && challenge->wireVersion == wire::kVersion) {
      const auto again = wire::encode(*challenge);
      require(std::equal(again.begin(), again.end(), bytes.begin()), "a challenge's way back");
    }
  }
  if (bytes.size() >= wire::kProofBytes) {
    const auto proof = wire::decodeProof(bytes.first<wire::kProofBytes>());
    if (proof) {
      const auto again = wire::encodeProof(*proof);
      require(std::equal(again.begin(), again.end(), bytes.begin()), "a proof's way back");
    }
  }
  if (bytes.size() >= wire::kAnswerHeadBytes) {
    const auto head = wire::decodeAnswerHead(bytes.first<wire::kAnswerHeadBytes>());
    require(!head || head->textBytes <= wire::kMaxText, "an answer's bounds");
  }
  if (bytes.size() >= SEQPAR_UNIQUE_ID_BYTES) {
    seqparUniqueId id;
    std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
    try {
      const auto rendezvous = wire::decodeRendezvous(id);
      require(!rendezvous.addresses.empty() && rendezvous.addresses.size() <= wire::kMaxAddresses, "an id's bounds");
      const auto again = wire::encode(rendezvous);
      require(wire::decodeRendezvous(again).addresses == rendezvous.addresses, "an id's way back");
    } catch (const Error& error) {
      require(error.result() == seqparInvalidArgument, "an id's refusal");
    }
  }
  constexpr size_t kMost = 512;
  wire::FrameReader frames(kMost);
  Reader reader(bytes);
  size_t bodies = 0;
  try {
    while (!reader.empty()) {
      frames.append(reader.take(reader.byte()));
      while (const auto frame = frames.next()) bodies += frame->body.size();
    }
  } catch (const Error& error) {
    require(error.result() == seqparRemoteError, "a frame's refusal");
  }
  require(bodies <= bytes.size(), "bodies out of nothing");
}

/// Genuine records, then arbitrary bytes, in arbitrary pieces: exactly the genuine payload comes out.
void openRecords(Reader& reader) {
  const Session session = makeSession(deriveToken("fuzz"), {}, {});
  Sealer sealer(session.toRank);
  wire::Bytes stream, expected, got;
  for (int genuine = reader.byte() % 4; genuine > 0; --genuine) {
    const auto payload = reader.take(reader.byte());
    expected.insert(expected.end(), payload.begin(), payload.end());
    sealer.seal(payload, stream);
  }
  const size_t piece = 1 + reader.byte();
  const auto rest = reader.take(4096);
  stream.insert(stream.end(), rest.begin(), rest.end());
  Opener opener(session.toRank);
  bool open = true;
  for (size_t at = 0; at < stream.size() && open; at += piece) {
    open = opener.open(std::span(stream).subspan(at, std::min(piece, stream.size() - at)), got);
  }
  require(got == expected, "records out of nothing");
}

/// A root, its connections and its clock.
class RootSession {
 public:
  void step(uint8_t code, Reader& reader) {
    slot_ = code / fuzz::kSteps % fuzz::kConnections;
    now_ += std::chrono::milliseconds(1);
    const auto what = static_cast<fuzz::Step>(code % fuzz::kSteps);
    auto& id = ids_[slot_];
    if (what == fuzz::Step::Pass) return pass(reader.byte());
    if (what == fuzz::Step::Drain) return drain();
    if (what == fuzz::Step::Open && !id) id = root_.open(now_);
    if (!id) return;
    switch (what) {
      case fuzz::Step::Hello:
        return hello(reader, false);
      case fuzz::Step::Foreign:
        return hello(reader, true);
      case fuzz::Step::Raw:
        return root_.receive(*id, reader.take(reader.byte()), now_);  // also more than the handshake expects
      case fuzz::Step::Frame: {
        const auto kind = static_cast<wire::Kind>(reader.byte());
        const uint32_t sequence = reader.byte();
        wire::Bytes bytes;
        wire::append(bytes, kind, sequence, reader.take(reader.byte()));
        // A server passes no more to a handshake.
        if (root_.expected(*id) > 0) bytes.resize(std::min(bytes.size(), root_.expected(*id)));
        return root_.receive(*id, bytes, now_);
      }
      case fuzz::Step::Close:
        root_.close(*std::exchange(id, std::nullopt), "closed", now_);
        return;
      default:
        return;
    }
  }

  /// What must hold after any step.
  void check() {
    size_t pending = 0;
    for (const auto& id : ids_) {
      if (id) pending += root_.output(*id).size();
    }
    require(pending < (size_t{64} << 20), "more output than input accounts for");
    require(!root_.running() || greeted_ > 0, "ranks without a token");
    require(root_.interval().count() > 0, "the interval");
  }

 private:
  void hello(Reader& reader, bool foreign) {
    wire::Hello hello;
    hello.rank = reader.byte();
    if (foreign) {
      hello.wireVersion = reader.byte();
      hello.libraryVersion = reader.byte();
      hello.nranks = 2;
    } else {
      hello.nranks = reader.byte();
      hello.timeoutMs = 10u * reader.byte();
    }
    hello.host = "host";
    const auto flaw = foreign ? fuzz::Flaw::None : static_cast<fuzz::Flaw>(reader.byte() % fuzz::kFlaws);
    const Root::Id id = *ids_[slot_];
    const auto bytes = wire::encode(hello);
    if (root_.expected(id) != bytes.size()) return;
    root_.receive(id, bytes, now_);
    if (root_.finished(id)) return;
    const auto challenge = std::exchange(root_.output(id), {});
    require(challenge.size() == wire::kChallengeBytes, "a challenge");
    const auto secret = flaw == fuzz::Flaw::Secret ? deriveToken("another") : token_;
    const auto session = makeSession(secret, bytes, challenge);
    auto proof = wire::encodeProof(flaw == fuzz::Flaw::Reflection ? session.toRank : session.proof);
    if (flaw == fuzz::Flaw::None) lastProof_ = proof;
    if (flaw == fuzz::Flaw::Replay && !lastProof_.empty()) proof = lastProof_;
    if (flaw == fuzz::Flaw::Replay && lastProof_.empty()) return;
    // Half: a later step would guess one missing byte now and then.
    if (flaw == fuzz::Flaw::Truncated) proof.resize(proof.size() / 2);
    if (flaw == fuzz::Flaw::Changed) proof.back() ^= std::byte{1};
    root_.receive(id, proof, now_);
    const bool right = flaw == fuzz::Flaw::None;
    require((root_.session(id) != nullptr) == right, "admission");
    if (right) ++greeted_;
  }

  void pass(uint8_t units) {
    now_ += std::chrono::milliseconds(10 * units);
    root_.tick(now_);
    (void)root_.over(now_);
  }

  void drain() {
    for (auto& id : ids_) {
      if (!id) continue;
      root_.output(*id).clear();
      if (!root_.finished(*id)) continue;
      root_.close(*std::exchange(id, std::nullopt), "was cut off", now_);
    }
  }

  Token token_ = deriveToken("fuzz");
  Root root_{RootOptions{token_, "the root"}};
  Root::Time now_{};
  std::array<std::optional<Root::Id>, fuzz::kConnections> ids_{};
  size_t slot_ = 0;
  int greeted_ = 0;
  wire::Bytes lastProof_;
};

/// A rank's votes: messages of other ranks, in any order and of any content that the decoder lets pass.
void vote(Reader& reader) {
  const size_t ranks = 1 + reader.byte() % 12;
  VoteOptions options;
  options.self = reader.byte() % static_cast<int>(ranks);
  options.timeout = std::chrono::milliseconds(100);
  options.interval = std::chrono::milliseconds(10);
  options.meet = [] { return seqparUniqueId{}; };
  Succession votes(ranks, options);
  Succession::Time now{};
  while (!reader.empty()) {
    now += std::chrono::milliseconds(reader.byte());
    const uint8_t step = reader.byte();
    const int rank = step / 8 % static_cast<int>(ranks);
    if (step % 8 == 0) votes.arrive(options.timeout, now);
    if (step % 8 == 1) votes.confirmDeparted(rank, now);
    if (step % 8 == 2) votes.leave();
    if (step % 8 == 3) votes.tick(now);
    if (step == 4) votes.resign();
    if (step % 8 > 4) {
      const uint32_t epoch = reader.byte() % 4;
      const auto bytes = reader.take(reader.byte());
      const auto message = wire::decodeVote(bytes, ranks);
      if (message) {
        const auto again = wire::encodeVote(*message);
        require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "a vote's way back");
        votes.receive(rank, epoch, *message, now);
      }
    }
    require(votes.take().size() <= 4 * ranks + 4, "more messages than a step accounts for");
    require(votes.excluded() || votes.members()[static_cast<size_t>(options.self)], "a member of its own vote");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Reader reader(std::as_bytes(std::span(data, size)));
  const auto input = static_cast<fuzz::Input>(reader.byte() % fuzz::kInputs);
  if (input == fuzz::Input::Parsers) {
    parse(reader.take(size));
    return 0;
  }
  if (input == fuzz::Input::Vote) {
    vote(reader);
    return 0;
  }
  if (input == fuzz::Input::Records) {
    openRecords(reader);
    return 0;
  }
  RootSession session;
  while (!reader.empty()) {
    session.step(reader.byte(), reader);
    session.check();
  }
  return 0;
}
