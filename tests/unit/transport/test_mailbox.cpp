// The mailbox between ranks that are threads: every mix of shared memory and network, and its contracts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <utility>

#include "common/covering.h"
#include "group.h"
#include "transport/segment.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::testing;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> none(const std::vector<std::string>& errors) {
  return std::vector<std::string>(errors.size());
}

std::byte byteOf(unsigned seed, int from, uint64_t message, size_t at) {
  return static_cast<std::byte>(seed + static_cast<unsigned>(from) * 131 + message * 31 + at * 7 + (at >> 8));
}

void fill(std::byte* data, size_t bytes, unsigned seed, int from, uint64_t message) {
  for (size_t at = 0; at < bytes; ++at) data[at] = byteOf(seed, from, message, at);
}

size_t mistakes(const std::byte* data, size_t bytes, unsigned seed, int from, uint64_t message) {
  size_t wrong = 0;
  for (size_t at = 0; at < bytes; ++at) wrong += data[at] != byteOf(seed, from, message, at);
  return wrong;
}

/// Sizes 0 to the largest, small ones more often; the same on every rank for the same generator.
size_t someSize(std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return random() % 50;
    case 1:
      return random() % 5000;
    case 2:
      return random() % (64 << 10);
    default:
      return random() % 20 == 0 ? kMaxMessage : random() % kMaxMessage;
  }
}

/// In each step every rank sends one message to every other, to all together or one by one, at most half a window in
/// total, and then reads the other ranks' messages in random order.
void exchange(Member& member, unsigned seed, int steps) {
  std::mt19937 shared(seed);
  std::mt19937 own(seed + 1 + static_cast<unsigned>(member.rank));
  std::vector<int> others;
  for (int rank = 0; rank < member.size; ++rank) {
    if (rank != member.rank) others.push_back(rank);
  }
  size_t wrong = 0;
  for (int step = 0; step < steps; ++step) {
    if (step % 10 == 0) member.mail.begin("exchange", 0);
    const bool together = shared() % 2 == 0;
    const size_t most = member.mail.window() / 2 / (together ? 1 : static_cast<size_t>(member.size));
    std::vector<size_t> sizes(static_cast<size_t>(member.size));
    for (size_t& size : sizes) size = std::min({someSize(shared), most, member.mail.maxMessage()});
    const size_t mine = sizes[static_cast<size_t>(member.rank)];
    const auto message = static_cast<uint64_t>(step);
    if (together) {
      if (!others.empty()) {
        std::byte* data = member.mail.acquire(others, mine).data;
        if (reinterpret_cast<uintptr_t>(data) % 64 != 0) ++wrong;
        fill(data, mine, seed, member.rank, message);
        member.mail.commit();
      }
    } else {
      for (const int to : others) {
        fill(member.mail.acquire(to, mine).data, mine, seed, member.rank, message);
        member.mail.commit();
      }
    }
    std::shuffle(others.begin(), others.end(), own);
    for (const int from : others) {
      const size_t bytes = sizes[static_cast<size_t>(from)];
      const std::byte* data = member.mail.receive(from, bytes);
      if (reinterpret_cast<uintptr_t>(data) % 64 != 0) ++wrong;
      wrong += mistakes(data, bytes, seed, from, message);
      member.mail.release(from);
    }
    if (step % 10 == 9 || step == steps - 1) member.mail.end();
  }
  if (wrong != 0) fail(seqparInternalError, wrong, " wrong bytes");
}

}  // namespace

TEST_CASE("messages of all sizes arrive complete and in order over every transport") {
  const seqpar::test::Seed seed;
  const int ranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(ranks);
  MailboxOptions options = optionsFor(ranks);
  SECTION("shared memory") {}
  SECTION("network") {
    options.transport = seqparTransportNetwork;
  }
  SECTION("two hosts") {
    for (size_t rank = 0; rank < options.hostIds.size(); rank += 2) options.hostIds[rank] = "there";
  }
  const auto errors =
      runThreads(options, [&](Member& member) { exchange(member, seed, seqpar::test::kSanitized ? 60 : 120); });
  REQUIRE(errors == none(errors));
}

TEST_CASE("a sender without readers sends half a window") {
  const int ranks = 3;
  MailboxOptions options = optionsFor(ranks);
  SECTION("shared memory") {}
  SECTION("network") {
    options.transport = seqparTransportNetwork;
  }
  const size_t bytes = GENERATE(size_t{1024}, size_t{100000}, kMaxMessage);
  const auto errors = runThreads(options, [&](Member& member) {
    const std::vector<int> others = {(member.rank + 1) % ranks, (member.rank + 2) % ranks};
    const size_t messages = member.mail.window() / 2 / bytes;
    for (int lap = 0; lap < 5; ++lap) {
      member.mail.begin("flood", 0);
      for (size_t i = 0; i < messages; ++i) {
        fill(member.mail.acquire(others, bytes).data, bytes, 0, member.rank, i);
        member.mail.commit();
      }
      member.mail.end();
      member.control.barrier();
      member.mail.begin("read", 0);
      for (const int from : others) {
        for (size_t i = 0; i < messages; ++i) {
          if (mistakes(member.mail.receive(from, bytes), bytes, 0, from, i) != 0) fail(seqparInternalError, "wrong");
          member.mail.release(from);
        }
      }
      member.mail.end();
    }
  });
  REQUIRE(errors == none(errors));
}

TEST_CASE("a message of a sender that already idles is received") {
  MailboxOptions options = optionsFor(2);
  options.transport = GENERATE(seqparTransportAuto, seqparTransportNetwork);
  const auto errors = runThreads(options, [&](Member& member) {
    const size_t bytes = member.mail.maxMessage();
    if (member.rank == 0) {
      member.mail.begin("send", 0);
      for (uint64_t i = 0; i < 4; ++i) {
        fill(member.mail.acquire(1, bytes).data, bytes, 7, 0, i);
        member.mail.commit();
      }
      member.mail.end();
    } else {
      std::this_thread::sleep_for(100ms);
      member.mail.begin("receive", 0);
      for (uint64_t i = 0; i < 4; ++i) {
        if (mistakes(member.mail.receive(0, bytes), bytes, 7, 0, i) != 0) fail(seqparInternalError, "wrong");
        member.mail.release(0);
      }
      member.mail.end();
    }
  });
  REQUIRE(errors == none(errors));
}

TEST_CASE("direct() distinguishes load/store from messages, and the description has the reason") {
  MailboxOptions options = optionsFor(4);
  options.hostIds = {"a", "a", "b", "a"};
  std::vector<MailboxDescription> descriptions(4);
  const auto errors = runThreads(options, [&](Member& member) {
    for (int peer = 0; peer < 4; ++peer) {
      const bool same = options.hostIds[static_cast<size_t>(peer)] == options.hostIds[static_cast<size_t>(member.rank)];
      if (peer != member.rank && member.mail.direct(peer) != same) fail(seqparInternalError, "direct(", peer, ")");
    }
    descriptions[static_cast<size_t>(member.rank)] = member.description;
  });
  REQUIRE(errors == none(errors));
  CAPTURE(descriptions[0].transport, descriptions[0].reason);
  REQUIRE(descriptions[0].transport.find("shared memory") == 0);
  REQUIRE(descriptions[0].transport.find("1 peer") != std::string::npos);
  REQUIRE(descriptions[0].reason.find("another host id") != std::string::npos);
  REQUIRE(descriptions[0].reason.find("CUDA") != std::string::npos);
  REQUIRE(descriptions[2].transport.find("shared memory") == std::string::npos);
}

TEST_CASE("ready() is true if receive() would not wait") {
  MailboxOptions options = optionsFor(2);
  options.transport = GENERATE(seqparTransportAuto, seqparTransportNetwork);
  const auto errors = runThreads(options, [&](Member& member) {
    member.mail.begin("ready", 0);
    if (member.rank == 0) {
      member.control.barrier();
      *member.mail.acquire(1, 1).data = std::byte{42};
      member.mail.commit();
    } else {
      if (member.mail.ready(0)) fail(seqparInternalError, "ready before anything was sent");
      member.control.barrier();
      while (!member.mail.ready(0)) std::this_thread::yield();
      if (*member.mail.receive(0, 1) != std::byte{42}) fail(seqparInternalError, "wrong");
      member.mail.release(0);
      if (member.mail.ready(0)) fail(seqparInternalError, "ready after the only message");
    }
    member.mail.end();
  });
  REQUIRE(errors == none(errors));
}

TEST_CASE("a message of another size is an internal error that names both sizes") {
  MailboxOptions options = optionsFor(2);
  options.transport = GENERATE(seqparTransportAuto, seqparTransportNetwork);
  const auto errors = runThreads(options, [&](Member& member) {
    member.mail.begin("mismatch", 0);
    if (member.rank == 0) {
      member.mail.acquire(1, 1000);
      member.mail.commit();
    } else {
      try {
        member.mail.receive(0, 1004);
        fail(seqparRemoteError, "accepted");
      } catch (const Error& error) {
        if (error.result() != seqparInternalError) throw;
        const std::string text = error.what();
        if (text.find("1000") == std::string::npos || text.find("1004") == std::string::npos) throw;
      }
    }
    member.mail.end();
  });
  REQUIRE(errors == none(errors));
}

TEST_CASE("a message with another mark is an internal error") {
  MailboxOptions options = optionsFor(2);
  options.transport = GENERATE(seqparTransportAuto, seqparTransportNetwork);
  const size_t bytes = GENERATE(size_t{0}, size_t{40}, size_t{100}, size_t{4096}, kMaxMessage);
  const auto marks = GENERATE(std::pair(uint64_t{5}, uint64_t{6}), std::pair(uint64_t{0}, uint64_t{6}),
                              std::pair(uint64_t{5}, uint64_t{0}));  // 0: the operation calls no mark()
  CAPTURE(bytes, marks.first, marks.second);
  const auto errors = runThreads(options, [&](Member& member) {
    const auto begin = [&](uint64_t digest) {
      member.mail.begin("mismatch", 0);
      if (digest != 0) member.mail.mark(digest);
    };
    const auto pass = [&](uint64_t sent, uint64_t expected) {
      begin(member.rank == 0 ? sent : expected);
      if (member.rank == 0) {
        std::memset(member.mail.acquire(1, bytes).data, 7, bytes);
        member.mail.commit();
      } else {
        const std::byte* const data = member.mail.receive(0, bytes);
        if (std::any_of(data, data + bytes, [](std::byte each) { return each != std::byte{7}; })) {
          fail(seqparRemoteError, "wrong data");
        }
        member.mail.release(0);
      }
      member.mail.end();
    };
    for (const uint64_t digest : {marks.first, uint64_t{0}, marks.second}) pass(digest, digest);
    try {
      pass(marks.first, marks.second);
      if (member.rank == 1) fail(seqparRemoteError, "accepted");
    } catch (const Error& error) {
      if (error.result() != seqparInternalError) throw;
      if (std::string(error.what()).find("the ranks disagree about the operation") == std::string::npos) throw;
    }
  });
  REQUIRE(errors == none(errors));
}

TEST_CASE("too large a message and misuse are internal errors") {
  const auto errors = runThreads(optionsFor(2), [&](Member& member) {
    member.mail.begin("misuse", 0);
    REQUIRE_THROWS_WITH(member.mail.acquire(1 - member.rank, member.mail.maxMessage() + 1), Catch::Contains("at most"));
    REQUIRE_THROWS_WITH(member.mail.commit(), Catch::Contains("no message"));
  });
  REQUIRE(errors == none(errors));
}

TEST_CASE("transport=shared refuses ranks that cannot share, on every rank, by name") {
  MailboxOptions options = optionsFor(3);
  options.hostIds = {"a", "a", "b"};
  options.transport = seqparTransportShared;
  const auto errors = runThreads(options, [](Member&) {});
  for (const std::string& error : errors) {
    CAPTURE(error);
    REQUIRE(error.find("SEQPAR_TRANSPORT=shared") != std::string::npos);
    REQUIRE(error.find("another host id") != std::string::npos);
  }
}

TEST_CASE("transport=shared serves ranks of one host") {
  MailboxOptions options = optionsFor(3);
  options.transport = seqparTransportShared;
  const auto errors = runThreads(options, [](Member& member) { exchange(member, 1, 10); });
  REQUIRE(errors == none(errors));
}
