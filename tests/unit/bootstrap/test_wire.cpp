// Wire messages: round trips, and refusal of all other bytes.
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "bootstrap/wire.h"
#include "unit/seed.h"

using namespace seqpar;

namespace {

wire::Rendezvous someRendezvous() {
  wire::Rendezvous rendezvous;
  rendezvous.port = 4711;
  rendezvous.token = randomToken();
  rendezvous.addresses.resize(2);
  rendezvous.addresses[0].bytes = {10, 1, 2, 3};
  rendezvous.addresses[1].version = 6;
  rendezvous.addresses[1].bytes[15] = 1;
  return rendezvous;
}

std::span<const std::byte, wire::kHelloBytes> asHello(const wire::Bytes& bytes) {
  return std::span<const std::byte, wire::kHelloBytes>(bytes);
}

}  // namespace

TEST_CASE("an id survives encoding") {
  const auto rendezvous = someRendezvous();
  const auto back = wire::decodeRendezvous(wire::encode(rendezvous));
  CHECK(back.port == rendezvous.port);
  CHECK(back.token == rendezvous.token);
  CHECK(back.addresses == rendezvous.addresses);
}

TEST_CASE("an id with any byte changed is invalid") {
  const auto id = wire::encode(someRendezvous());
  for (size_t at = 0; at < sizeof(id.internal); ++at) {
    CAPTURE(at);
    auto changed = id;
    changed.internal[at] = static_cast<char>(changed.internal[at] ^ 0x10);
    try {
      wire::decodeRendezvous(changed);
      FAIL("was accepted");
    } catch (const Error& error) {
      CHECK(error.result() == seqparInvalidArgument);
      CHECK_THAT(error.what(), Catch::Contains("not an id from seqparGetUniqueId"));
    }
  }
  seqparUniqueId zeros{};
  CHECK_THROWS_AS(wire::decodeRendezvous(zeros), Error);
}

TEST_CASE("a hello survives encoding, and out-of-bounds bytes are refused") {
  wire::Hello hello;
  hello.nonce = randomToken();
  hello.rank = 3;
  hello.nranks = 8;
  hello.timeoutMs = 1234;
  hello.pid = 99;
  hello.host = "a host";
  const auto bytes = wire::encode(hello);
  REQUIRE(bytes.size() == wire::kHelloBytes);
  const auto back = wire::decodeHello(asHello(bytes));
  REQUIRE(back);
  CHECK(back->nonce == hello.nonce);
  CHECK(back->rank == 3);
  CHECK(back->nranks == 8);
  CHECK(back->timeoutMs == 1234);
  CHECK(back->pid == 99);
  CHECK(back->host == "a host");

  const auto refusedWith = [&](size_t at, int value) {
    auto changed = bytes;
    changed[at] = static_cast<std::byte>(value);
    return !wire::decodeHello(asHello(changed));
  };
  CHECK(refusedWith(0, 0));      // the magic
  CHECK(refusedWith(6, 1));      // reserved
  CHECK(refusedWith(34, 2));     // nranks of 131080
  CHECK(refusedWith(39, 0x80));  // a negative timeout
  CHECK(refusedWith(44, 81));    // a host longer than its room
  CHECK(refusedWith(47, 1));     // far longer
  CHECK(refusedWith(127, 1));    // bytes after the host
}

TEST_CASE("texts are truncated to the receiver's limit") {
  wire::Hello hello;
  hello.host = std::string(500, 'h');
  CHECK(wire::decodeHello(asHello(wire::encode(hello)))->host == std::string(wire::kMaxHost, 'h'));

  wire::Answer answer;
  answer.text = std::string(100000, 't');
  const auto bytes = wire::encode(answer);
  const auto head = wire::decodeAnswerHead(std::span(bytes).first<wire::kAnswerHeadBytes>());
  REQUIRE(head);
  CHECK(head->textBytes == wire::kMaxText);
  CHECK(bytes.size() == wire::kAnswerHeadBytes + wire::kMaxText);
}

TEST_CASE("frames are decoded from any division of the byte stream") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  wire::Bytes stream;
  std::vector<size_t> sizes;
  for (uint32_t i = 0; i < 50; ++i) {
    sizes.push_back(random() % 100);
    wire::append(stream, wire::Kind::Gather, i, wire::Bytes(sizes.back(), static_cast<std::byte>(i)));
  }
  wire::FrameReader reader(1000);
  uint32_t seen = 0;
  for (size_t at = 0; at < stream.size();) {
    const size_t step = std::min<size_t>(random() % 40, stream.size() - at);
    reader.append(std::span(stream).subspan(at, step));
    at += step;
    while (const auto frame = reader.next()) {
      REQUIRE(seen < sizes.size());
      CHECK(frame->sequence == seen);
      CHECK(frame->body == wire::Bytes(sizes[seen], static_cast<std::byte>(seen)));
      ++seen;
    }
  }
  CHECK(seen == sizes.size());
}

TEST_CASE("frames out of bounds are refused once their header is read") {
  const auto refused = [](wire::Bytes bytes) {
    wire::FrameReader reader(100);
    reader.append(bytes);
    try {
      while (reader.next()) {
      }
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  const auto frame = [](wire::Kind kind, size_t bodyBytes) {
    wire::Bytes bytes;
    wire::append(bytes, kind, 0, wire::Bytes(bodyBytes));
    return bytes;
  };
  CHECK_FALSE(refused(frame(wire::Kind::Gather, 100)));
  CHECK(refused(frame(wire::Kind::Gather, 101)));
  CHECK(refused(frame(wire::Kind::Heartbeat, 1)));
  CHECK(refused(frame(wire::Kind::News, wire::kMaxText + 1)));
  CHECK(refused(frame(static_cast<wire::Kind>(0), 0)));
  CHECK_FALSE(refused(frame(wire::Kind::Calls, 8)));
  CHECK(refused(frame(wire::Kind::Calls, wire::encode(wire::Calls{0, CallReport{}}).size() + 1)));
  CHECK_FALSE(refused(frame(wire::Kind::Refused, 16 + wire::kMaxText)));
  CHECK(refused(frame(wire::Kind::Refused, 17 + wire::kMaxText)));
  CHECK(refused(frame(static_cast<wire::Kind>(13), 0)));
  CHECK(refused(wire::Bytes(12, std::byte{0xff})));
  auto head = frame(wire::Kind::Gather, 101);
  head.resize(12);
  CHECK(refused(head));
}

TEST_CASE("refusals of calls keep their counts and their text") {
  const auto back = wire::decodeRefusal(wire::encode(Refusal{3, uint64_t{1} << 40, "no\nqueries"}));
  REQUIRE(back);
  CHECK(back->number == 3);
  CHECK(back->calls == uint64_t{1} << 40);
  CHECK(back->why == "no?queries");
  CHECK(wire::encode(Refusal{1, 0, std::string(9000, 'x')}).size() == 16 + wire::kMaxText);
  CHECK_FALSE(wire::decodeRefusal(wire::encode(Refusal{0, 1, "not counted"})));
  CHECK_FALSE(wire::decodeRefusal(wire::Bytes(15)));
}

TEST_CASE("text from other ranks is stripped of control characters") {
  const std::string nasty = "a\x1b[2J\nb\x7f";
  CHECK(wire::readable(std::as_bytes(std::span(nasty.data(), nasty.size()))) == "a?[2J?b?");
}

TEST_CASE("tokens") {
  CHECK(deriveToken("one") == deriveToken("one"));
  CHECK(deriveToken("one") != deriveToken("two"));
  const auto one = deriveToken("one"), salt = randomToken();
  CHECK(deriveToken(one, "split", salt) == deriveToken(one, "split", salt));
  CHECK(deriveToken(one, "split", salt) != deriveToken(one, "control", salt));
  CHECK(deriveToken(one, "split", salt) != deriveToken(one, "split", randomToken()));
  CHECK(deriveToken(one, "split", salt) != deriveToken(salt, "split", salt));
  const auto token = randomToken();
  CHECK(token != randomToken());
  CHECK(equalTokens(token, token));
  for (size_t at = 0; at < token.size(); ++at) {
    auto other = token;
    other[at] ^= std::byte{1};
    CHECK_FALSE(equalTokens(token, other));
  }
}
