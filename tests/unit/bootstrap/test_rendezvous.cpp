// Rendezvous over TCP, among ranks that fit and strangers that do not.
#include <poll.h>

#include <catch2/catch.hpp>

#include "bootstrap/rendezvous_client.h"
#include "gathering.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;
using std::chrono::milliseconds;

namespace {

Descriptor connectTo(const seqparUniqueId& id) {
  const auto rendezvous = wire::decodeRendezvous(id);
  const Health health;
  return connectTo(ConnectTarget{rendezvous.addresses, rendezvous.port, "", false}, Deadline(kNoTimeout), health);
}

void send(const Descriptor& socket, const wire::Bytes& bytes) {
  REQUIRE(writeSome(socket, bytes).bytes == bytes.size());
}

wire::Bytes receive(const Descriptor& socket, size_t bytes) {
  wire::Bytes all(bytes);
  size_t have = 0;
  waitUntil([&] {
    const SocketTransfer got = readSome(socket, std::span(all).subspan(have));
    have += got.bytes;
    return have == bytes || got.closed || got.error != 0;
  });
  all.resize(have);
  return all;
}

/// The handshake of a rank that knows `secret`.
void greet(const Descriptor& socket, const wire::Hello& hello, const Token& secret) {
  const auto bytes = wire::encode(hello);
  send(socket, bytes);
  const auto challenge = receive(socket, wire::kChallengeBytes);
  REQUIRE(challenge.size() == wire::kChallengeBytes);
  send(socket, wire::encodeProof(makeSession(secret, bytes, challenge).proof));
}

/// Waits for the other side to close; false if it sends something first.
bool closes(const Descriptor& socket) {
  std::array<std::byte, 1> byte;
  SocketTransfer got;
  waitUntil([&] {
    got = readSome(socket, byte);
    return got.bytes > 0 || got.closed || got.error != 0;
  });
  return got.bytes == 0;
}

}  // namespace

TEST_CASE("ranks with an id join and gather") {
  const int nranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(nranks);
  const auto id = makeUniqueId("");
  const auto errors = onThreads(nranks, [&](int rank) {
    const auto allgather = joinRendezvous(id, rank, nranks, withTimeout(kNoTimeoutMs));
    checkGathers(*allgather, rank, nranks, 20);
  });
  CHECK(errors == "");
}

TEST_CASE("ranks connect over a chosen interface, and an unknown one is named") {
  const auto id = makeUniqueId("lo");
  CHECK(addressText(wire::decodeRendezvous(id).addresses.at(0), 1) == "127.0.0.1:1");
  auto options = withTimeout(kNoTimeoutMs);
  options.interfaceName = "lo";
  const auto errors = onThreads(2, [&](int rank) {
    const auto allgather = joinRendezvous(id, rank, 2, options);
    checkGathers(*allgather, rank, 2, 2);
  });
  CHECK(errors == "");
  CHECK_THROWS_WITH(makeUniqueId("nosuch0"), Contains("network interface nosuch0") && Contains("lo"));
}

TEST_CASE("large messages are sent") {
  const auto id = makeUniqueId("");
  const auto errors = onThreads(3, [&](int rank) {
    const auto allgather = joinRendezvous(id, rank, 3, withTimeout(kNoTimeoutMs));
    const std::vector<int> mine(1 << 20, rank);
    std::vector<int> all(3 << 20);
    allgather->gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (size_t i = 0; i < all.size(); ++i) expect(all[i] == static_cast<int>(i >> 20), "element ", i);
  });
  CHECK(errors == "");
}

TEST_CASE("unknown connections stall no rank and are closed") {
  const auto id = makeUniqueId("");
  const auto silent = connectTo(id);
  const auto slow = connectTo(id);
  send(slow, wire::Bytes(5));
  const auto garbage = connectTo(id);
  send(garbage, wire::Bytes(4096, std::byte{'G'}));
  const auto wrongToken = connectTo(id);
  wire::Hello hello;
  hello.nranks = 2;
  hello.rank = 1;
  greet(wrongToken, hello, randomToken());
  auto truncated = connectTo(id);
  auto half = wire::encode(hello);
  half.resize(100);
  send(truncated, half);
  truncated.close();

  CHECK(closes(garbage));
  CHECK(closes(wrongToken));
  const auto errors = onThreads(2, [&](int rank) {
    const auto allgather = joinRendezvous(id, rank, 2, withTimeout(kNoTimeoutMs));
    checkGathers(*allgather, rank, 2, 3);
  });
  CHECK(errors == "");
  CHECK(closes(silent));
  CHECK(closes(slow));
}

TEST_CASE("an unknown silent connection is closed while ranks are still joining") {
  const auto id = makeUniqueId("");
  const auto silent = connectTo(id);
  CHECK(closes(silent));
}

TEST_CASE("another version is refused by name on all ranks") {
  const auto id = makeUniqueId("");
  const auto rendezvous = wire::decodeRendezvous(id);
  std::string text;
  std::thread rank([&] {
    try {
      joinRendezvous(id, 0, 2, withTimeout(kNoTimeoutMs));
    } catch (const Error& error) {
      text = error.what();
    }
  });
  const auto other = connectTo(id);
  wire::Hello hello;
  hello.libraryVersion = 90000;
  hello.rank = 1;
  hello.nranks = 2;
  greet(other, hello, rendezvous.token);
  rank.join();
  CHECK_THAT(text, Contains("rank 1 has seqpar 9.0.0") && Contains(wire::versionText(SEQPAR_VERSION_CODE)));
}

TEST_CASE("a server of another version, protocol or secret is named") {
  auto [ours, remote] = socketPair();
  const auto token = randomToken();
  std::string expected;
  std::string what = GENERATE("library", "wire", "http", "secret", "changed");
  CAPTURE(what);
  std::thread server([&, socket = std::move(remote)] {
    wire::Challenge challenge;
    challenge.nonce = randomToken();
    if (what == "wire") challenge.wireVersion = 9;
    auto bytes = wire::encode(challenge);
    if (what == "http") std::fill(bytes.begin(), bytes.end(), std::byte{'H'});
    const auto hello = receive(socket, wire::kHelloBytes);
    send(socket, bytes);
    if (what == "http" || what == "wire") return;
    receive(socket, wire::kProofBytes);
    wire::Answer answer;
    answer.joined = true;
    answer.libraryVersion = 90807;
    answer.text = "rank 0 (h, pid 1)";
    const auto session = makeSession(what == "secret" ? randomToken() : token, hello, bytes);
    wire::Bytes records;
    Sealer(session.toRank).seal(wire::encode(answer), records);
    if (what == "changed") records.back() ^= std::byte{1};
    send(socket, records);
  });
  if (what == "library") {
    expected = "rank 1 has seqpar " + wire::versionText(SEQPAR_VERSION_CODE) + ", rank 0 (h, pid 1) has 9.8.7";
  } else if (what == "wire") {
    expected = "(wire version " + std::to_string(wire::kVersion) + "), the root has ";
  } else {
    expected = what == "http" ? "the answer is not from seqpar" : "the root does not know the secret";
  }
  const Health health;
  CHECK_THROWS_WITH(joinRoot(std::move(ours), JoinRequest{token, 1, 2, milliseconds(kNoTimeoutMs)}, health),
                    Contains(expected));
  server.join();
}

TEST_CASE("inconsistent ranks are named on all ranks") {
  const auto id = makeUniqueId("");
  const auto join = [&](int rank, int nranks) { joinRendezvous(id, rank, nranks, withTimeout(kNoTimeoutMs)); };
  SECTION("twice") {
    const auto errors = onThreads(2, [&](int) { join(1, 3); });
    CHECK_THAT(errors, Contains("rank 0: joining the other ranks: rank 1 is taken twice") &&
                           Contains("rank 1: joining the other ranks: rank 1 is taken twice"));
  }
  SECTION("nranks") {
    const auto errors = onThreads(2, [&](int rank) { join(rank, rank + 3); });
    CHECK_THAT(errors, Contains("rank 0: joining") && Contains("rank 1: joining"));
    // Either order of arrival is correct.
    CHECK_THAT(errors,
               (Contains("gave nranks 4") && Contains("gave 3")) || (Contains("gave nranks 3") && Contains("gave 4")));
  }
  SECTION("out of range, before anything is sent") {
    CHECK_THROWS_WITH(join(3, 3), Contains("rank is 3, expected 0..2"));
    CHECK_THROWS_WITH(join(-1, 3), Contains("rank is -1, expected 0..2"));
    CHECK_THROWS_WITH(join(0, 0), Contains("nranks is 0"));
  }
}

TEST_CASE("an absent rank is named after the timeout, also to a rank that joins later") {
  const auto wrong = withGrowingTimeout(700, [](int timeoutMs) -> std::string {
    const auto id = makeUniqueId("");
    const auto errors = onThreads(3, [&](int rank) {
      if (rank < 2) joinRendezvous(id, rank, 3, withTimeout(timeoutMs));
    });
    const auto says = [&](const char* text) { return errors.find(text) != std::string::npos; };
    if (!says("rank 0: joining the other ranks: rank 2 did not arrive") || !says("rank 1: joining")) return errors;
    CHECK_THROWS_WITH(joinRendezvous(id, 2, 3, withTimeout(kNoTimeoutMs)), Contains("rank 2 did not arrive"));
    return "";
  });
  CHECK(wrong == "");
}

TEST_CASE("an id is valid for one communicator") {
  const auto id = makeUniqueId("");
  const auto errors = onThreads(2, [&](int rank) { joinRendezvous(id, rank, 2, withTimeout(kNoTimeoutMs)); });
  CHECK(errors == "");
  CHECK_THROWS_AS(joinRendezvous(id, 0, 2, withTimeout(3000)), Error);
}

TEST_CASE("a silent server times out") {
  const auto listener = listenOn("lo", 0);
  const auto id = wire::encode(wire::Rendezvous{listener.addresses, listener.port, randomToken()});
  CHECK_THROWS_WITH(joinRendezvous(id, 0, 2, withTimeout(500)), Contains("no answer in time"));
}

TEST_CASE("a rank that leaves the rendezvous fails only later gathers") {
  const auto id = makeUniqueId("");
  const auto errors = onThreads(3, [&](int rank) {
    const auto allgather = joinRendezvous(id, rank, 3, withTimeout(kNoTimeoutMs));
    checkGathers(*allgather, rank, 3, 2);
    if (rank == 2) return;
    const auto text = gatherError(*allgather, 4);
    expect(text.find("rank 2 (") != std::string::npos && text.find("left") != std::string::npos, text);
  });
  CHECK(errors == "");
}
