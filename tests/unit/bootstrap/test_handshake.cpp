// Admission by challenge and response: recorded, reflected, changed and slow handshakes, many unproven connections, and
// the records of an admitted connection.
#include <catch2/catch.hpp>
#include <random>

#include "root_star.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// A handshake as a listener on the network records it.
struct Recording {
  wire::Bytes hello, challenge, proof;
};

Recording record(Star& star) {
  Recording recording;
  const auto id = star.root.open(star.now);
  recording.hello = wire::encode(star.hello(1, 2));
  star.receive(id, recording.hello);
  recording.challenge = std::exchange(star.root.output(id), {});
  recording.proof = wire::encodeProof(makeSession(star.token, recording.hello, recording.challenge).proof);
  star.receive(id, recording.proof);
  return recording;
}

bool refused(Star& star, Root::Id id) {
  return star.root.finished(id) && star.root.session(id) == nullptr && star.root.output(id).empty();
}

wire::Bytes bytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("handshake: neither the secret nor a usable part of it is sent") {
  Star star;
  const auto recording = record(star);
  for (const auto* bytes : {&recording.hello, &recording.challenge, &recording.proof}) {
    CHECK(std::search(bytes->begin(), bytes->end(), star.token.begin(), star.token.begin() + 4) == bytes->end());
  }
}

TEST_CASE("handshake: a recorded one is refused, by the same root and by another root with the same secret") {
  Star star;
  const auto recording = record(star);
  Star other;
  other.token = star.token;
  other.root = Root(RootOptions{star.token, "the root"});
  for (Star* root : {&star, &other}) {
    const auto id = root->root.open(root->now);
    root->receive(id, recording.hello);
    const auto challenge = std::exchange(root->root.output(id), {});
    CHECK(challenge != recording.challenge);
    root->receive(id, recording.proof);
    CHECK(refused(*root, id));
  }
  const auto rank = other.connect(other.hello(0, 2));
  CHECK(other.root.output(rank).empty());  // rank 1 has not joined
}

TEST_CASE("handshake: a changed, reflected, early or truncated one is refused") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  Star star;
  for (int trial = 0; trial < 200; ++trial) {
    const auto id = star.root.open(star.now);
    auto hello = wire::encode(star.hello(1, 2));
    star.receive(id, hello);
    const auto challenge = std::exchange(star.root.output(id), {});
    hello[40 + random() % 4] ^= std::byte{1};  // the pid: a field that no check but the proof protects
    auto session = makeSession(star.token, hello, challenge);
    auto proof = wire::encodeProof(trial % 3 == 0 ? session.toRank : session.proof);
    if (trial % 3 == 1) proof[8 + random() % 32] ^= static_cast<std::byte>(1u << random() % 8);
    if (trial % 3 == 2) proof.resize(8 + random() % 31);
    star.receive(id, proof);
    if (trial % 3 == 2) star.pass(milliseconds(3100));
    CHECK(refused(star, id));
    star.root.close(id, "was cut off", star.now);
  }
  const auto early = star.root.open(star.now);
  star.receive(early, wire::Bytes(wire::kHelloBytes + wire::kProofBytes));
  CHECK(refused(star, early));
}

TEST_CASE("handshake: unproven connections keep no rank out, and their number is bounded") {
  Star star;
  size_t open = 0;
  std::vector<Root::Id> unproven;
  for (uint64_t source = 1; source <= 1000; ++source) {
    if (!star.root.mayOpen(star.now)) star.now += milliseconds(251);
    REQUIRE(star.root.mayOpen(star.now));
    unproven.push_back(star.root.open(star.now, source));
    open = 0;
    for (const auto id : unproven) open += star.root.finished(id) ? 0 : 1;
    REQUIRE(open <= 256);
  }
  star.now += milliseconds(251);
  const auto first = star.connect(star.hello(0, 2));
  const auto second = star.connect(star.hello(1, 2));
  CHECK(star.answer(first).joined);
  CHECK(star.answer(second).joined);
}

TEST_CASE("handshake: one address has few unproven connections") {
  Star star;
  std::vector<Root::Id> ids;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(star.root.open(star.now, 7));
    star.now += milliseconds(20);
  }
  size_t open = 0;
  for (const auto id : ids) open += star.root.finished(id) ? 0 : 1;
  CHECK(open <= 17);
  const auto elsewhere = star.root.open(star.now, 8);
  CHECK_FALSE(star.root.finished(elsewhere));
}

TEST_CASE("records are read from any division of their bytes, and only unchanged and in order") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  const auto session = makeSession(randomToken(), {}, {});
  for (int trial = 0; trial < 300; ++trial) {
    CAPTURE(trial);
    Sealer sealer(session.toRank);
    std::vector<wire::Bytes> records;
    wire::Bytes sent;
    for (int i = 0; i < 4; ++i) {
      const wire::Bytes part(1 + random() % (i == 3 ? 2 * kRecordPayload : 50), static_cast<std::byte>(i));
      sent.insert(sent.end(), part.begin(), part.end());
      sealer.seal(part, records.emplace_back());
    }
    const int fault = trial % 5;
    auto& victim = records[random() % 3];
    if (fault == 1) victim[random() % victim.size()] ^= static_cast<std::byte>(1u << random() % 8);
    if (fault == 2) std::swap(records[0], records[1]);
    if (fault == 3) records.insert(records.begin() + 1, records[0]);
    wire::Bytes stream;
    for (const auto& one : records) stream.insert(stream.end(), one.begin(), one.end());
    Opener opener(fault == 4 ? session.toRoot : session.toRank);
    wire::Bytes got;
    bool genuine = true;
    for (size_t at = 0; at < stream.size() && genuine;) {
      const size_t step = std::min<size_t>(1 + random() % 5000, stream.size() - at);
      genuine = opener.open(std::span(stream).subspan(at, step), got);
      at += step;
    }
    if (fault == 0) {
      CHECK(genuine);
      CHECK(got == sent);
    } else {
      // A changed length may wait for bytes that never come; nothing of a changed record is delivered.
      CHECK((!genuine || got.size() < sent.size()));
      CHECK(got.size() <= sent.size());
      CHECK(std::equal(got.begin(), got.end(), sent.begin()));
      CHECK((!opener.open(bytesOf(std::string(2 * kRecordPayload, 'x')), got) || fault == 1));
    }
  }
}
