// The root while ranks join it.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "root_star.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;

TEST_CASE("root: a rank may join byte by byte") {
  Star star;
  const auto first = star.root.open(star.now);
  const auto hello = wire::encode(star.hello(1, 2));
  for (const std::byte byte : hello) star.receive(first, {byte});
  const auto challenge = std::exchange(star.root.output(first), {});
  const auto session = makeSession(star.token, hello, challenge);
  for (const std::byte byte : wire::encodeProof(session.proof)) star.receive(first, {byte});
  CHECK(star.root.output(first).empty());
  const auto second = star.connect(star.hello(0, 2));
  CHECK(star.answer(first).joined);
  CHECK(star.answer(second).joined);
}

TEST_CASE("root: unknown connections are closed without an answer or effect") {
  Star star;
  const auto client = star.connect(star.hello(0, 2));
  const auto wrongToken = star.root.open(star.now);
  star.greet(wrongToken, star.hello(1, 2), randomToken());
  const auto garbage = star.root.open(star.now);
  star.receive(garbage, wire::Bytes(1000, std::byte{'G'}));
  const auto silent = star.root.open(star.now);
  const auto slow = star.root.open(star.now);
  star.pass(milliseconds(2500));
  star.receive(slow, wire::Bytes(3));
  CHECK_FALSE(star.root.finished(silent));
  star.pass(milliseconds(1000));
  for (const auto id : {wrongToken, garbage, silent, slow}) {
    CAPTURE(id);
    CHECK(star.root.finished(id));
    CHECK(star.root.output(id).empty());
    star.root.close(id, "was cut off", star.now);
  }
  CHECK(star.root.output(client).empty());
  const auto last = star.connect(star.hello(1, 2));
  CHECK(star.answer(last).joined);
  CHECK(star.answer(client).joined);
}

TEST_CASE("root: a slow connection of its own process is accepted") {
  Star star;
  const auto own = star.root.openOwn(star.now);
  star.pass(std::chrono::minutes(1));  // meanwhile the caller's allgather distributes the invitation
  CHECK_FALSE(star.root.finished(own));
  star.greet(own, star.hello(0, 2));
  const auto other = star.connect(star.hello(1, 2));
  CHECK(star.answer(own).joined);
  CHECK(star.answer(other).joined);
}

TEST_CASE("root: inconsistent ranks are refused by name on all ranks") {
  Star star;
  const auto first = star.connect(star.hello(0, 3));
  const auto second = star.connect(star.hello(1, 3));
  auto hello = star.hello(2, 3);
  std::string text;
  SECTION("another version of the library") {
    hello.libraryVersion = SEQPAR_VERSION_CODE + 100;
    text = "rank 2 has seqpar " + wire::versionText(hello.libraryVersion) + ", the root has " +
           wire::versionText(SEQPAR_VERSION_CODE);
  }
  SECTION("a rank twice") {
    hello.rank = 1;
    text = "rank 1 is taken twice: by (h, pid 102) and by rank 1 (h, pid 101)";
  }
  SECTION("a rank out of range") {
    hello.rank = 3;
    text = "rank 3 (h, pid 102) is out of range, expected 0..2";
  }
  SECTION("another number of ranks") {
    hello.nranks = 4;
    text = "rank 2 (h, pid 102) gave nranks 4, rank 0 (h, pid 100) gave 3";
  }
  const auto odd = star.connect(hello);
  for (const auto id : {first, second, odd}) {
    const auto answer = star.answer(id);
    CHECK_FALSE(answer.joined);
    CHECK_THAT(answer.text, Contains(text));
    CHECK(star.root.finished(id));
  }
  const auto late = star.connect(star.hello(2, 3));
  CHECK_THAT(star.answer(late).text, Contains(text));
}

TEST_CASE("root: an absent rank is named") {
  Star star;
  const auto first = star.connect(star.hello(1, 12));
  star.pass(milliseconds(9500));
  CHECK(star.root.output(first).empty());
  star.pass(milliseconds(1000));
  CHECK(star.answer(first).text ==
        "ranks 0, 2, 3, 4, 5, 6, 7, 8 and 3 more did not arrive at the root within 10000 ms");
}

TEST_CASE("root: with timeout 0 it waits") {
  Star star;
  const auto first = star.connect(star.hello(0, 2, 0));
  star.pass(std::chrono::hours(1));
  CHECK(star.root.output(first).empty());
  star.connect(star.hello(1, 2, 0));
  CHECK(star.answer(first).joined);
  star.pass(std::chrono::hours(1));
  CHECK(star.frames(first).empty());
}

TEST_CASE("root: a message before all have joined fails all") {
  Star star;
  const auto first = star.connect(star.hello(0, 3));
  const auto second = star.connect(star.hello(1, 3));
  star.gather(second, 1);
  CHECK_THAT(star.answer(first).text, Contains("rank 1 (h, pid 101) sent to the root: a message before all ranks"));
}

TEST_CASE("root: the other ranks learn of the exit of a waiting rank") {
  Star star;
  const auto first = star.connect(star.hello(0, 3));
  star.root.close(star.connect(star.hello(1, 3)), "closed", star.now);
  CHECK_THAT(star.answer(first).text, Contains("rank 1 (h, pid 101) closed (not all ranks had joined yet)"));
}

TEST_CASE("root: ranks that cannot be accepted are refused with the reason, and later ones too") {
  Star star;
  const auto first = star.connect(star.hello(0, 3));
  star.root.refuseJoins("no descriptors", star.now);
  const auto text = star.answer(first).text;
  CHECK(text == "the root cannot accept connections: no descriptors");
  CHECK(star.root.finished(first));
  const auto late = star.connect(star.hello(1, 3));
  const auto answer = star.answer(late);
  CHECK_FALSE(answer.joined);
  CHECK(answer.text == text);
}

TEST_CASE("root: a lack of descriptors after all have joined has no effect") {
  Star star;
  const auto ids = star.connectAll(2);
  star.root.refuseJoins("no descriptors", star.now);
  CHECK(star.root.running());
  for (const auto id : ids) CHECK(star.frames(id).empty());
}
