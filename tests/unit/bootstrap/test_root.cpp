// The root of ranks that have joined it.
#include <array>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "root_star.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;

TEST_CASE("root: long waits are reported with the missing ranks at intervals") {
  Star star;
  const uint32_t timeout = GENERATE(0u, 60000u);
  const auto ids = star.connectAll(3, timeout);
  const auto said = [&](size_t rank) {
    std::string text;
    for (const auto& frame : star.frames(ids[rank])) {
      CHECK(frame.kind == wire::Kind::Missing);
      text += wire::readable(frame.body) + "; ";
    }
    return text;
  };
  const auto pass = [&](int seconds) {
    for (int i = 0; i < 2 * seconds; ++i) {
      for (const auto id : ids) star.beat(id);
      star.pass(milliseconds(500));
    }
  };
  pass(10);  // no rank waits
  star.gather(ids[0], 4);
  star.gather(ids[2], 4);
  pass(2);
  CHECK(said(0) == "");
  pass(2);
  CHECK(said(0) == "rank 1 did not take part after 3 s; ");
  CHECK(said(1) == "");
  CHECK(said(2) == "rank 1 did not take part after 3 s; ");
  pass(25);
  CHECK(said(0) == "");
  pass(2);
  CHECK(said(0) == "rank 1 did not take part after 30 s; ");
  CHECK(said(2) == "rank 1 did not take part after 30 s; ");
  star.gather(ids[1], 4);
  for (const auto id : ids) CHECK(star.frames(id).at(0).kind == wire::Kind::Gathered);
  wire::Bytes bye;
  wire::append(bye, wire::Kind::Bye);
  star.receive(ids[1], bye);
  pass(4);
  CHECK(said(0) == "");
  CHECK(said(1) == "ranks 0, 2 did not leave after 3 s; ");
}

TEST_CASE("root: ranks with fewer enqueued calls are reported until they catch up") {
  Star star;
  const auto ids = star.connectAll(3, 0);
  const auto calls = [&](size_t rank, uint64_t number) {
    wire::Bytes bytes;
    wire::append(bytes, wire::Kind::Calls, 0, wire::encode(wire::Calls{number, std::nullopt}));
    star.receive(ids[rank], bytes);
  };
  const auto reported = [&](size_t rank) {
    std::vector<std::string> texts;
    for (const auto& frame : star.frames(ids[rank])) {
      CHECK(frame.kind == wire::Kind::Behind);
      texts.push_back(wire::readable(frame.body));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  for (const size_t rank : {0, 1, 2}) calls(rank, 40);
  star.pass(milliseconds(5000));
  CHECK(reported(0).empty());
  calls(0, 41);
  calls(2, 42);
  star.pass(milliseconds(600));
  calls(1, 41);  // it continues, only later
  star.pass(milliseconds(600));
  CHECK(reported(0).empty());
  calls(0, 43);
  star.pass(milliseconds(5000));
  for (const size_t rank : {0, 1, 2}) CHECK(reported(rank) == Texts{"rank 1 enqueued 41 calls, others up to 43"});
  for (const size_t rank : {0, 1, 2}) calls(rank, 50);
  star.pass(milliseconds(1000));
  for (const size_t rank : {0, 1, 2}) CHECK(reported(rank) == Texts{""});
  wire::Bytes cut;
  wire::append(cut, wire::Kind::Calls, 0, wire::Bytes(4));
  star.receive(ids[1], cut);
  CHECK_THAT(star.news(ids[0]), Catch::Contains("a call count of"));
}

TEST_CASE("root: collective calls that differ between ranks fail all ranks") {
  Star star;
  const auto ids = star.connectAll(3);
  std::array<CallChain, 3> chains;
  const auto report = [&](size_t rank) {
    wire::Bytes bytes;
    wire::append(bytes, wire::Kind::Calls, 0, wire::encode(wire::Calls{0, chains[rank].report()}));
    star.receive(ids[rank], bytes);
  };
  for (size_t rank = 0; rank < 3; ++rank) {
    for (uint16_t call = 0; call < 5 + rank; ++call) chains[rank].add(call);
    report(rank);
  }
  for (const size_t rank : {0, 1, 2}) CHECK(star.frames(ids[rank]).empty());
  chains[1].add(7);  // the others' seventh call has the digest 6
  report(1);
  const std::string expected =
      "the ranks disagree about a call: rank 1 (h, pid 101) and rank 2 (h, pid 102) issued different collective calls; "
      "the first is number 7. ";
  for (const size_t rank : {0, 1, 2}) CHECK_THAT(star.news(ids[rank]), Contains(expected));
}

TEST_CASE("root: other ranks learn of a refused call and the rank") {
  Star star;
  const auto ids = star.connectAll(3);
  wire::Bytes bytes;
  wire::append(bytes, wire::Kind::Refused, 0, wire::encode(Refusal{2, 7, "no queries"}));
  star.receive(ids[1], bytes);
  CHECK(star.frames(ids[1]).empty());
  for (const size_t rank : {0, 2}) {
    const auto frames = star.frames(ids[rank]);
    REQUIRE(frames.size() == 1);
    CHECK(frames[0].kind == wire::Kind::Refused);
    const auto refusal = wire::decodeRefusal(frames[0].body);
    REQUIRE(refusal);
    CHECK(refusal->number == 2);
    CHECK(refusal->calls == 7);
    CHECK(refusal->why == "rank 1 (h, pid 101) refused a call: no queries");
  }
  wire::Bytes cut;
  wire::append(cut, wire::Kind::Refused, 0, wire::Bytes(4));
  star.receive(ids[1], cut);
  CHECK_THAT(star.news(ids[0]), Catch::Contains("refusal"));
}

TEST_CASE("root: a silent rank fails all, a rank with heartbeats does not") {
  Star star;
  const auto ids = star.connectAll(3, 1000);
  for (int i = 0; i < 100; ++i) {
    for (const auto id : ids) star.beat(id);
    star.pass(milliseconds(100));
  }
  CHECK(star.frames(ids[0]).empty());
  for (int i = 0; i < 11; ++i) {
    star.beat(ids[0]);
    star.beat(ids[2]);
    star.pass(milliseconds(100));
  }
  for (const auto id : ids) CHECK_THAT(star.news(id), Contains("rank 1 (h, pid 101) has been silent for 1000 ms"));
}

TEST_CASE("root: time in which it did not run counts against no rank") {
  Star star;
  const auto ids = star.connectAll(2, 1000);
  star.pass(milliseconds(500));
  star.now += std::chrono::hours(1);
  star.root.tick(star.now);
  CHECK(star.frames(ids[0]).empty());
  star.pass(milliseconds(1200));
  CHECK_THAT(star.news(ids[0]), Contains("silent"));
}

TEST_CASE("root: gathers in rank order, again and again") {
  Star star;
  const auto ids = star.connectAll(3);
  for (uint32_t sequence = 1; sequence <= 3; ++sequence) {
    for (const int rank : {2, 0, 1}) star.gather(ids[static_cast<size_t>(rank)], 2, sequence);
    for (const auto id : ids) {
      const auto frames = star.frames(id);
      REQUIRE(frames.size() == 1);
      CHECK(frames[0].kind == wire::Kind::Gathered);
      CHECK(frames[0].sequence == sequence);
      wire::Bytes expected;
      for (const auto one : ids) expected.insert(expected.end(), 2, static_cast<std::byte>(one));
      CHECK(frames[0].body == expected);
    }
  }
}

TEST_CASE("root: gathers of different sizes name the ranks, and the next one works") {
  Star star;
  const auto ids = star.connectAll(3);
  star.gather(ids[0], 8);
  star.gather(ids[1], 8);
  star.gather(ids[2], 9);
  for (const auto id : ids) {
    const auto frames = star.frames(id);
    REQUIRE(frames.size() == 1);
    CHECK(frames[0].kind == wire::Kind::Mismatch);
    CHECK_THAT(wire::readable(frames[0].body), Contains("rank 2 gave 9 bytes, rank 0 gave 8"));
  }
  for (const auto id : ids) star.gather(id, 0, 2);
  for (const auto id : ids) CHECK(star.frames(id).at(0).kind == wire::Kind::Gathered);
}

TEST_CASE("root: a rank missing in a gather is named") {
  Star star;
  const auto ids = star.connectAll(3, 1000);
  star.gather(ids[1], 8);
  for (int i = 0; i < 11; ++i) {
    for (const auto id : ids) star.beat(id);
    star.pass(milliseconds(100));
  }
  for (const auto id : ids) CHECK(star.news(id) == "gather: ranks 0, 2 did not take part within 1000 ms");
}

TEST_CASE("root: a rank out of step or out of order fails all") {
  Star star;
  const auto ids = star.connectAll(2);
  wire::Bytes bytes;
  SECTION("another gather") {
    wire::append(bytes, wire::Kind::Gather, 2);
  }
  SECTION("a second piece") {
    wire::append(bytes, wire::Kind::Gather, 1);
    wire::append(bytes, wire::Kind::Gather, 1);
  }
  SECTION("messages that only the root sends") {
    wire::append(bytes, wire::Kind::AllLeft);
  }
  SECTION("garbage") {
    bytes.assign(100, std::byte{'x'});
  }
  SECTION("a message after its bye") {
    wire::append(bytes, wire::Kind::Bye);
    wire::append(bytes, wire::Kind::Gather, 1);
  }
  star.receive(ids[1], bytes);
  CHECK_THAT(star.news(ids[0]), Contains("rank 1 (h, pid 101)"));
  CHECK(star.root.finished(ids[1]));
  CHECK_FALSE(star.root.finished(ids[0]));
}

TEST_CASE("root: all ranks learn of a closed connection, with and without a bye") {
  Star star;
  const auto ids = star.connectAll(3);
  wire::Bytes bytes;
  wire::append(bytes, wire::Kind::Bye);
  star.receive(ids[2], bytes);
  star.root.close(ids[2], "closed", star.now);
  CHECK(star.frames(ids[0]).empty());
  star.root.close(ids[1], "closed", star.now);
  CHECK(star.news(ids[0]) == "rank 1 (h, pid 101) closed");
}

TEST_CASE("root: each notice is sent to all ranks once") {
  Star star;
  const auto ids = star.connectAll(3);
  wire::Bytes bytes;
  wire::appendText(bytes, wire::Kind::News, 0, "out of\npaper");
  star.receive(ids[1], bytes);
  star.receive(ids[2], bytes);
  for (const auto id : ids) CHECK(star.news(id) == "rank 1 (h, pid 101) failed: out of?paper");
}

TEST_CASE("root: after all ranks leave, it notifies them and ends") {
  Star star;
  const auto ids = star.connectAll(2, 1000);
  wire::Bytes bytes;
  wire::append(bytes, wire::Kind::Bye);
  star.receive(ids[0], bytes);
  CHECK(star.frames(ids[0]).empty());
  SECTION("all") {
    star.receive(ids[1], bytes);
    for (const auto id : ids) CHECK(star.frames(id).at(0).kind == wire::Kind::AllLeft);
    CHECK_FALSE(star.root.over(star.now));
    for (const auto id : ids) star.root.close(id, "closed", star.now);
    CHECK(star.root.over(star.now));
  }
  SECTION("not every rank in time") {
    for (int i = 0; i < 11; ++i) {
      star.beat(ids[1]);
      star.pass(milliseconds(100));
    }
    CHECK_THAT(star.news(ids[0]), Contains("rank 1 did not leave within 1000 ms"));
  }
  SECTION("one gathers instead") {
    star.gather(ids[1], 4);
    CHECK_THAT(star.news(ids[0]), Contains("rank 0 (h, pid 100) left, and rank 1 (h, pid 101) gathers"));
  }
}
