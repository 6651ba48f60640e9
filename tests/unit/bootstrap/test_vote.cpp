// The vote on virtual time: processes die, stop and wake, messages are late or lost, links are cut in one direction or
// both. All live members of a next communicator must agree on it, healthy majorities must decide, and after deaths
// alone all survivors must.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <vector>

#include "bootstrap/succession.h"
#include "unit/seed.h"

using namespace seqpar;
using std::chrono::milliseconds;

namespace {

using Time = Vote::Time;

constexpr milliseconds kTimeout{400};

enum class Trouble { Deaths, Losses, Stops, Cuts, Deaf };

/// One job on virtual time.
class World {
 public:
  World(unsigned seed, Trouble trouble) : random_(seed), trouble_(trouble) {
    size_ = 2 + below(8);
    timeout_ = trouble == Trouble::Deaths && below(2) == 0 ? milliseconds(0) : kTimeout;
    dead_.resize(size_);
    stopped_.resize(size_);
    deaf_ = trouble == Trouble::Deaf ? below(static_cast<int>(size_)) : size_;
    cut_.assign(size_, std::vector<bool>(size_));
    VoteOptions options;
    options.timeout = timeout_;
    options.interval = voteInterval(timeout_);
    for (size_t rank = 0; rank < size_; ++rank) {
      options.self = static_cast<int>(rank);
      options.seed = static_cast<uint32_t>(random_());
      options.meet = [this, rank] {
        seqparUniqueId id{};
        id.internal[0] = static_cast<char>(rank);
        id.internal[1] = static_cast<char>(++meetings_);
        return id;
      };
      ranks_.push_back(std::make_unique<Succession>(size_, options));
    }
  }

  size_t size() const { return size_; }
  bool alive(size_t rank) const { return !dead_[rank]; }
  bool healthy(size_t rank) const { return alive(rank) && !everStopped_.count(rank) && rank != deaf_; }
  Succession& at(size_t rank) { return *ranks_[rank]; }
  Trouble trouble() const { return trouble_; }
  milliseconds timeout() const { return timeout_; }

  void run(milliseconds most) {
    start();
    while (!events_.empty() && events_.top().at <= most && !finished()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.run();
      flush();
    }
  }

  milliseconds now() const { return now_; }
  bool finished() {
    for (size_t rank = 0; rank < size_; ++rank) {
      if (alive(rank) && !done(rank)) return false;
    }
    return true;
  }
  bool done(size_t rank) {
    return at(rank).epoch() > 0 || at(rank).excluded() || at(rank).resigned() || !at(rank).failure().empty();
  }

 private:
  struct Event {
    milliseconds at;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const { return std::pair(other.at, other.order) < std::pair(at, order); }
  };

  size_t below(int end) { return random_() % static_cast<unsigned>(end); }
  milliseconds upTo(milliseconds most) { return milliseconds(random_() % static_cast<unsigned>(most.count() + 1)); }
  Time time() const { return Time{} + std::chrono::hours(1) + now_; }

  void after(milliseconds delay, std::function<void()> run) { events_.push({now_ + delay, ++order_, std::move(run)}); }

  /// Runs on the process once it is not stopped; never on a dead one.
  void on(size_t rank, const std::function<void()>& run) {
    if (dead_[rank]) return;
    if (!stopped_[rank]) return run();
    after(milliseconds(7), [=, this] { on(rank, run); });
  }

  void start() {
    for (size_t rank = 0; rank < size_; ++rank) {
      after(upTo(timeout_ / 4 + milliseconds(20)),
            [=, this] { on(rank, [=, this] { at(rank).arrive(timeout_, time()); }); });
      tick(rank);
    }
    const size_t deaths = below(static_cast<int>(size_));
    if (trouble_ != Trouble::Stops && trouble_ != Trouble::Cuts && trouble_ != Trouble::Deaf) {
      for (size_t i = 0; i < deaths; ++i) {
        after(upTo(milliseconds(120)), [this, rank = below(static_cast<int>(size_))] { die(rank); });
      }
    }
    if (trouble_ == Trouble::Stops) {
      for (size_t i = 0; i < deaths; ++i) {
        after(upTo(milliseconds(100)), [this, rank = below(static_cast<int>(size_))] { stop(rank); });
      }
    }
    if (trouble_ == Trouble::Cuts) {
      after(upTo(milliseconds(100)), [this] {
        const bool oneWay = below(2) == 0;
        for (size_t from = 0; from < size_; ++from) {
          for (size_t to = 0; to < from; ++to) {
            if (below(4) != 0) continue;
            cut_[from][to] = true;
            if (!oneWay) cut_[to][from] = true;
          }
        }
      });
    }
  }

  void tick(size_t rank) {
    after(milliseconds(5), [=, this] {
      if (dead_[rank]) return;
      if (!stopped_[rank]) at(rank).tick(time());
      tick(rank);
    });
  }

  void die(size_t rank) {
    if (dead_[rank]) return;
    dead_[rank] = true;
    for (size_t other = 0; other < size_; ++other) {
      after(milliseconds(1) + upTo(milliseconds(60)),
            [=, this] { on(other, [=, this] { at(other).confirmDeparted(static_cast<int>(rank), time()); }); });
    }
  }

  void stop(size_t rank) {
    everStopped_[rank] = true;
    stopped_[rank] = true;
    constexpr int kTenths[] = {2, 15, 40};
    after(timeout_ * kTenths[below(3)] / 10, [=, this] { stopped_[rank] = false; });
  }

  void flush() {
    for (size_t rank = 0; rank < size_; ++rank) {
      for (auto& sent : at(rank).take()) {
        if (dead_[rank]) continue;
        const auto to = static_cast<size_t>(sent.to);
        if (cut_[rank][to] || to == deaf_) continue;
        if (trouble_ == Trouble::Losses && below(4) == 0) continue;
        const auto delay = upTo(below(8) == 0 ? kTimeout / 5 : milliseconds(3));
        after(delay, [=, this, epoch = sent.epoch, message = sent.message] {
          on(to, [=, this] { at(to).receive(static_cast<int>(rank), epoch, message, time()); });
        });
      }
    }
  }

  std::minstd_rand random_;
  Trouble trouble_;
  size_t size_ = 0, deaf_ = 0;
  int meetings_ = 0;
  milliseconds timeout_{0}, now_{0};
  uint64_t order_ = 0;
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<Succession>> ranks_;
  RankSet dead_, stopped_;
  std::map<size_t, bool> everStopped_;
  std::vector<RankSet> cut_;
};

/// No two live members of a next communicator hold different ones.
bool agrees(World& world) {
  const Membership* seen = nullptr;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    const auto& one = world.at(rank);
    if (!world.alive(rank) || one.excluded() || one.epoch() == 0) continue;
    const Membership& choice = one.choice();
    if (!choice.members[rank]) return false;
    if (seen != nullptr && (seen->members != choice.members ||
                            !std::equal(std::begin(seen->meeting.internal), std::end(seen->meeting.internal),
                                        std::begin(choice.meeting.internal)))) {
      return false;
    }
    seen = &choice;
  }
  return true;
}

int trials() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 300;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
  return 300;
#endif
#endif
  return 4000;
}

template <typename Check>
void runTrials(Trouble trouble, Check check) {
  const test::Seed seed;
  for (int i = 0; i < trials(); ++i) {
    const unsigned own = seed + static_cast<unsigned>(i) * 7919u + 1;
    INFO("trial " << i << " of seed " << own);
    World world(own, trouble);
    // A rank may pass over all others before it finds no quorum.
    world.run((3 * static_cast<int>(world.size()) + 4) * kTimeout);
    REQUIRE(agrees(world));
    check(world);
  }
}

}  // namespace

TEST_CASE("After deaths, all survivors agree on a membership that contains them") {
  const auto check = [](World& world) {
    milliseconds latest{0};
    for (size_t rank = 0; rank < world.size(); ++rank) {
      if (!world.alive(rank)) continue;
      CAPTURE(rank, world.at(rank).failure());
      REQUIRE(world.at(rank).epoch() == 1);
      REQUIRE_FALSE(world.at(rank).excluded());
      REQUIRE_FALSE(world.at(rank).resigned());
    }
    latest = world.now();
    REQUIRE(latest < 4 * kTimeout);
  };
  runTrials(Trouble::Deaths, check);
}

TEST_CASE("A vote survives lost messages and deaths") {
  runTrials(Trouble::Losses, [](World& world) {
    for (size_t rank = 0; rank < world.size(); ++rank) {
      if (!world.alive(rank)) continue;
      CAPTURE(rank, world.at(rank).failure());
      REQUIRE(world.done(rank));
    }
  });
}

TEST_CASE("A majority decides without stopped ranks, which do no harm when they wake") {
  runTrials(Trouble::Stops, [](World& world) {
    size_t healthy = 0;
    for (size_t rank = 0; rank < world.size(); ++rank) healthy += world.healthy(rank) ? 1 : 0;
    for (size_t rank = 0; rank < world.size(); ++rank) {
      CAPTURE(rank, healthy, world.size(), world.at(rank).failure(), world.now().count());
      REQUIRE(world.done(rank));
      if (2 * healthy <= world.size() || !world.healthy(rank)) continue;
      REQUIRE(world.at(rank).epoch() == 1);
      REQUIRE_FALSE(world.at(rank).excluded());
    }
  });
}

TEST_CASE("Ranks across cut links never hold two memberships") {
  runTrials(Trouble::Cuts, [](World& world) {
    for (size_t rank = 0; rank < world.size(); ++rank) {
      CAPTURE(rank, world.size(), world.now().count());
      REQUIRE(world.done(rank));
    }
  });
}

TEST_CASE("A rank that hears no other rank does not stop the others") {
  runTrials(Trouble::Deaf, [](World& world) {
    if (world.size() < 3) return;
    for (size_t rank = 0; rank < world.size(); ++rank) {
      if (!world.healthy(rank)) continue;
      CAPTURE(rank, world.size(), world.at(rank).failure(), world.now().count());
      REQUIRE(world.at(rank).epoch() == 1);
      REQUIRE_FALSE(world.at(rank).excluded());
    }
  });
}
