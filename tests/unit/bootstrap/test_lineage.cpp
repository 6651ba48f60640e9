// Votes over sockets: ranks are threads of this process.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <deque>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "bootstrap/lineage.h"
#include "bootstrap/wire.h"
#include "common/timeouts.h"
#include "unit/seed.h"

using namespace seqpar;
using std::chrono::milliseconds;

namespace {

class Group {
 public:
  Group(int size, milliseconds timeout) : timeout_(timeout) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Lineage>(rank, size, ControlOptions{timeout, "lo"}));
      cards.push_back(ranks_.back()->card());
    }
    const Token secret = randomToken();
    for (int rank = 0; rank < size; ++rank) {
      at(rank).connect(cards, secret);
      at(rank).enter(0, [](const std::string&) {});
    }
  }

  Lineage& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void end(int rank) { ranks_[static_cast<size_t>(rank)].reset(); }

  /// The results of agree() on `callers`, or their errors.
  std::vector<std::string> agree(const std::vector<int>& callers, uint32_t epoch) {
    std::vector<std::string> out(callers.size());
    successors.assign(callers.size(), {});
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < callers.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          successors[i] = at(callers[i]).agree(epoch, timeout_);
          for (const int member : successors[i].members) out[i] += concat(out[i].empty() ? "" : " ", member);
        } catch (const Error& error) {
          out[i] = error.what();
        }
      });
    }
    threads.clear();
    return out;
  }

  bool sameMeeting() const {
    return std::all_of(successors.begin(), successors.end(), [&](const Successor& one) {
      return one.epoch == successors[0].epoch &&
             std::equal(std::begin(one.meeting.internal), std::end(one.meeting.internal),
                        std::begin(successors[0].meeting.internal));
    });
  }

  std::vector<LineageCard> cards;
  std::vector<Successor> successors;

 private:
  milliseconds timeout_;
  std::vector<std::unique_ptr<Lineage>> ranks_;
};

using Texts = std::vector<std::string>;

/// Opens connections to a rank's listener, as many as it gets, until it is destroyed.
class Flood {
 public:
  explicit Flood(const LineageCard& card)
      : thread_([rendezvous = wire::decodeRendezvous(card.address)](const std::stop_token& stop) {
          std::deque<Descriptor> open;
          while (!stop.stop_requested()) {
            int error = 0;
            open.push_back(startConnecting(rendezvous.addresses.front(), rendezvous.port, "", error));
            if (open.size() > 400) open.pop_front();
            if (open.size() % 50 == 0) std::this_thread::sleep_for(milliseconds(1));
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

TEST_CASE("lineage: a flood of connections without a proof does not keep the ranks from their decision") {
  Group group(3, test::kNoTimeout);
  const Flood first(group.cards[0]);
  const Flood second(group.cards[1]);
  CHECK(group.agree({0, 1, 2}, 0) == Texts(3, "0 1 2"));
}

TEST_CASE("lineage: survivors agree on the members and on a meeting, one epoch after the other") {
  for (const auto timeout : {milliseconds(0), test::kNoTimeout}) {
    Group group(4, timeout);
    CHECK(group.agree({0, 1, 2, 3}, 0) == Texts(4, "0 1 2 3"));
    CHECK(group.sameMeeting());
    group.end(0);
    CHECK(group.agree({1, 2, 3}, 0) == Texts(3, "1 2 3"));
    CHECK(group.sameMeeting());
    CHECK(group.successors[0].epoch == 2);
    group.end(2);
    group.end(3);
    CHECK(group.agree({1}, 2) == Texts{"1"});
    CHECK(group.successors[0].epoch == 3);
  }
}

TEST_CASE("lineage: a communicator that was replaced is not shrunk again") {
  Group group(2, milliseconds(0));
  CHECK(group.agree({0, 1}, 0) == Texts(2, "0 1"));
  for (int rank = 0; rank < 2; ++rank) group.at(rank).enter(1, [](const std::string&) {});
  CHECK_THROWS_WITH(group.at(0).agree(0, milliseconds(0)), Catch::Contains("was shrunk already"));
  CHECK(group.agree({0, 1}, 1) == Texts(2, "0 1"));
}

TEST_CASE("lineage: a vote ends the other ranks' communicator") {
  Group group(2, milliseconds(0));
  std::atomic<bool> lost{false};
  group.at(1).enter(0, [&](const std::string&) {
    lost = true;
    lost.notify_all();
  });
  group.at(1).serve();
  std::jthread voter([&] { group.at(0).agree(0, milliseconds(0)); });
  lost.wait(false);
  group.at(1).agree(0, milliseconds(0));
}

TEST_CASE("lineage: a silent rank is left out by a majority only, and learns it") {
  const auto wrong = test::withGrowingTimeout(400, [](int ms) -> std::string {
    Group three(3, milliseconds(ms));
    if (three.agree({1, 2}, 0) != Texts(2, "1 2")) return "two of three did not decide";
    // Rank 0 was silent because its thread did not run.
    const std::string late = three.agree({0}, 0)[0];
    if (late.find("excluded") == std::string::npos) return late;
    Group two(2, milliseconds(ms));
    const std::string alone = two.agree({0}, 0)[0];
    return alone.find("no quorum") == std::string::npos ? alone : "";
  });
  CHECK(wrong == "");
}

TEST_CASE("lineage: a rank that does not call in time resigns") {
  const auto wrong = test::withGrowingTimeout(300, [](int ms) -> std::string {
    Group group(2, milliseconds(ms));
    group.at(0).serve();
    const std::string decided = group.agree({1}, 0)[0];
    if (decided != "1") return decided;
    const std::string late = group.agree({0}, 0)[0];
    return late.find("excluded") == std::string::npos ? late : "";
  });
  CHECK(wrong == "");
}

TEST_CASE("lineage: connections without the secret have no effect") {
  const test::Seed seed;
  std::minstd_rand random(seed);
  Group group(3, milliseconds(0));
  const auto door = wire::decodeRendezvous(group.cards[0].address);
  Health health;
  for (int rank = 0; rank < 3; ++rank) group.at(rank).serve();
  const ConnectTarget target{door.addresses, door.port, "", false};
  std::vector<Descriptor> held;
  for (int i = 0; i < 40; ++i) {
    auto socket = connectTo(target, Deadline(milliseconds(5000)), health);
    std::vector<std::byte> bytes(random() % 300);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    wire::Hello hello;
    hello.nranks = 3;
    hello.rank = random() % 4;
    const auto head = wire::encode(hello);
    if (i % 2 == 0) bytes.insert(bytes.begin(), head.begin(), head.end());
    writeSome(socket, bytes);
    if (i % 3 != 0) held.push_back(std::move(socket));
  }
  CHECK(group.agree({0, 1, 2}, 0) == Texts(3, "0 1 2"));
}

TEST_CASE("lineage: processes") {
  const ProcessIdentity own = thisProcess();
  CHECK(isVisible(own));
  CHECK_FALSE(hasEnded(own));
  ProcessIdentity other = own;
  ++other.start;
  CHECK_FALSE(isVisible(other));
  other = own;
  other.boot ^= 1;
  CHECK_FALSE(isVisible(other));
}

TEST_CASE("vote messages are decoded within bounds") {
  const test::Seed seed;
  std::minstd_rand random(seed);
  for (size_t ranks : {1u, 7u, 8u, 9u, 100u}) {
    VoteMessage message;
    message.kind = VoteMessage::Kind::Promise;
    message.arrived = true;
    message.ballot = 1234567890123u;
    message.accepted = 42;
    message.departed.resize(ranks);
    Membership& choice = message.choice.emplace();
    choice.members.resize(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      message.departed[rank] = random() % 2 == 0;
      choice.members[rank] = random() % 2 == 0;
    }
    for (auto& byte : choice.meeting.internal) byte = static_cast<char>(random());
    const wire::Bytes bytes = wire::encodeVote(message);
    const auto read = wire::decodeVote(bytes, ranks);
    REQUIRE(read.has_value());
    CHECK((read->kind == message.kind && read->arrived && read->ballot == message.ballot && read->accepted == 42));
    CHECK((read->departed == message.departed && read->choice->members == choice.members));
    CHECK_FALSE(wire::decodeVote(bytes, ranks + 1).has_value());
    for (size_t size = 0; size < bytes.size(); ++size) {
      CHECK_FALSE(wire::decodeVote(std::span(bytes).first(size), ranks).has_value());
    }
    for (int i = 0; i < 200; ++i) {
      wire::Bytes changed = bytes;
      changed[random() % changed.size()] = static_cast<std::byte>(random());
      wire::decodeVote(changed, ranks);
    }
  }
}
