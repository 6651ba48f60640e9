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

/// Waits for the other side to close; false if it sends something first.
bool closes(const Descriptor& socket) {
  std::array<std::byte, 1> byte;
  Transfer got;
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
  const auto rendezvous = wire::decodeRendezvous(id);
  const auto silent = connectTo(id);
  const auto slow = connectTo(id);
  send(slow, wire::Bytes(5));
  const auto garbage = connectTo(id);
  send(garbage, wire::Bytes(4096, std::byte{'G'}));
  const auto wrongToken = connectTo(id);
  wire::Hello hello;
  hello.token = randomToken();
  hello.nranks = 2;
  hello.rank = 1;
  send(wrongToken, wire::encode(hello));
  auto truncated = connectTo(id);
  hello.token = rendezvous.token;
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
  hello.token = rendezvous.token;
  hello.libraryVersion = 90000;
  hello.rank = 1;
  hello.nranks = 2;
  send(other, wire::encode(hello));
  rank.join();
  CHECK_THAT(text, Contains("rank 1 has seqpar 9.0.0") && Contains(wire::versionText(SEQPAR_VERSION_CODE)));
}

TEST_CASE("a server of another version or protocol is named") {
  auto [ours, remote] = socketPair();
  wire::Bytes reply;
  std::string expected;
  SECTION("version") {
    wire::Answer answer;
    answer.joined = true;
    answer.libraryVersion = 90807;
    answer.text = "rank 0 (h, pid 1)";
    reply = wire::encode(answer);
    expected = "rank 1 has seqpar " + wire::versionText(SEQPAR_VERSION_CODE) + ", rank 0 (h, pid 1) has 9.8.7";
  }
  SECTION("something else") {
    const std::string http = "HTTP/1.1 400 Bad Request\r\n\r\n";
    reply.resize(http.size());
    std::memcpy(reply.data(), http.data(), http.size());
    expected = "the answer is not from seqpar";
  }
  send(remote, reply);
  const Health health;
  CHECK_THROWS_WITH(joinRoot(std::move(ours), JoinRequest{randomToken(), 1, 2, milliseconds(5000)}, health),
                    Contains(expected));
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
