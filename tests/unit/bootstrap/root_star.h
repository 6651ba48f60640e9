// The root without sockets and with a simulated clock.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/root.h"

namespace seqpar::test {

using std::chrono::milliseconds;

/// A root and its connections as a test sees them.
struct Star {
  Token token = randomToken();
  Root root{RootOptions{token, "the root"}};
  Root::Time now{};
  std::map<Root::Id, wire::Bytes> seen;

  void receive(Root::Id id, const wire::Bytes& bytes) { root.receive(id, bytes, now); }

  Root::Id connect(const wire::Hello& hello) {
    const auto id = root.open(now);
    greet(id, hello);
    return id;
  }

  /// The handshake of a rank that knows `secret`.
  void greet(Root::Id id, const wire::Hello& hello, const Token& secret) {
    const auto bytes = wire::encode(hello);
    receive(id, bytes);
    const auto challenge = std::exchange(root.output(id), {});
    REQUIRE(challenge.size() == wire::kChallengeBytes);
    if (root.finished(id)) return;
    receive(id, wire::encodeProof(makeSession(secret, bytes, challenge).proof));
  }
  void greet(Root::Id id, const wire::Hello& hello) { greet(id, hello, token); }

  wire::Hello hello(uint32_t rank, uint32_t nranks, uint32_t timeoutMs = 10000) const {
    wire::Hello hello;
    hello.nonce = randomToken();
    hello.rank = rank;
    hello.nranks = nranks;
    hello.timeoutMs = timeoutMs;
    hello.pid = 100 + rank;
    hello.host = "h";
    return hello;
  }

  std::vector<Root::Id> connectAll(uint32_t nranks, uint32_t timeoutMs = 10000) {
    std::vector<Root::Id> ids;
    for (uint32_t rank = 0; rank < nranks; ++rank) ids.push_back(connect(hello(rank, nranks, timeoutMs)));
    for (const auto id : ids) CHECK(answer(id).joined);
    return ids;
  }

  /// The answer that the connection received; the test fails if there is none.
  wire::Answer answer(Root::Id id) {
    auto& out = root.output(id);
    REQUIRE(out.size() >= wire::kAnswerHeadBytes);
    const auto head = wire::decodeAnswerHead(std::span<const std::byte>(out).first<wire::kAnswerHeadBytes>());
    REQUIRE(head);
    REQUIRE(out.size() >= wire::kAnswerHeadBytes + head->textBytes);
    auto answer = head->answer;
    answer.text = wire::readable(std::span(out).subspan(wire::kAnswerHeadBytes, head->textBytes));
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(wire::kAnswerHeadBytes + head->textBytes));
    return answer;
  }

  /// The frames that the connection got, heartbeats left out.
  std::vector<wire::Frame> frames(Root::Id id) {
    wire::FrameReader reader(wire::kMaxResult);
    reader.append(std::exchange(root.output(id), {}));
    std::vector<wire::Frame> all;
    while (auto frame = reader.next()) {
      if (frame->kind != wire::Kind::Heartbeat) all.push_back(std::move(*frame));
    }
    return all;
  }

  std::string news(Root::Id id) {
    const auto all = frames(id);
    if (all.size() != 1 || all[0].kind != wire::Kind::News) return "no news";
    return wire::readable(all[0].body);
  }

  void pass(milliseconds time) {
    const auto until = now + time;
    while (now < until) {
      now += root.interval();
      root.tick(now);
    }
  }

  void beat(Root::Id id) {
    wire::Bytes bytes;
    wire::append(bytes, wire::Kind::Heartbeat);
    receive(id, bytes);
  }

  void gather(Root::Id id, size_t size, uint32_t sequence = 1) {
    wire::Bytes bytes;
    wire::append(bytes, wire::Kind::Gather, sequence, wire::Bytes(size, static_cast<std::byte>(id)));
    receive(id, bytes);
  }
};

}  // namespace seqpar::test
