// The order of independent calls of seqpar.jax on ranks that are threads.
#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <random>
#include <set>

#include "jax/order.h"
#include "unit/seed.h"

namespace {

using seqpar::jax::Order;
using seqpar::jax::OrderedCall;

/// Calls of a random program, which needs the results of some calls for others. Two calls may have the same site.
struct Program {
  std::vector<std::vector<size_t>> needs;  // of each call: earlier calls
  std::vector<int64_t> runs;               // the execution of each call
  size_t failing = SIZE_MAX;               // this call fails on rank 0
};

/// Ranks that arrive at calls in random orders. A call keeps them alive.
class Ranks : public std::enable_shared_from_this<Ranks> {
 public:
  Ranks(Program program, int32_t ranks, unsigned seed)
      : program_(std::move(program)), order_(std::make_shared<Order>(ranks)) {
    for (int32_t rank = 0; rank < ranks; ++rank)
      states_.push_back({rank, std::mt19937(seed + static_cast<unsigned>(rank))});
  }

  void run() {
    std::vector<std::thread> threads;
    for (auto& state : states_) threads.emplace_back([&] { arriveAtReady(state); });
    for (auto& thread : threads) thread.join();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::all_of(states_.begin(), states_.end(),
                         [&](const State& one) { return one.ended.size() == program_.needs.size(); });
    });
  }

  /// The calls that ran, in order, and the errors of all calls.
  const std::vector<size_t>& ran(size_t rank) const { return states_[rank].ran; }
  const std::map<size_t, std::string>& ended(size_t rank) const { return states_[rank].ended; }

 private:
  struct State {
    int32_t rank;
    std::mt19937 random;
    std::set<size_t> arrived = {};
    std::vector<size_t> ran = {};
    std::map<size_t, std::string> ended = {};
  };

  class Call final : public OrderedCall {
   public:
    Call(std::shared_ptr<Ranks> ranks, State& state, size_t number)
        : ranks_(std::move(ranks)), state_(state), number_(number) {}
    /// Waits for all ranks, as a collective call does.
    std::string run() override {
      std::unique_lock lock(ranks_->mutex_);
      state_.ran.push_back(number_);
      if (number_ == ranks_->program_.failing && state_.rank == 0) ranks_->failed_ = true;
      ranks_->changed_.notify_all();
      ranks_->changed_.wait(lock, [&] {
        return ranks_->failed_ || std::all_of(ranks_->states_.begin(), ranks_->states_.end(),
                                              [&](const State& one) { return one.ran.size() >= state_.ran.size(); });
      });
      return number_ == ranks_->program_.failing && state_.rank == 0 ? "failed" : "";
    }
    void end(const std::string& error) override {
      {
        const std::lock_guard lock(ranks_->mutex_);
        state_.ended[number_] = error;
        ranks_->changed_.notify_all();
      }
      ranks_->arriveAtReady(state_);
    }

   private:
    std::shared_ptr<Ranks> ranks_;
    State& state_;
    size_t number_;
  };

  /// Arrives at the calls with all that they need, in random order; a call that needs a failed one ends with its error.
  void arriveAtReady(State& state) {
    for (;;) {
      size_t number = 0;
      {
        const std::lock_guard lock(mutex_);
        std::vector<size_t> ready;
        for (size_t i = 0; i < program_.needs.size(); ++i) {
          const auto& needs = program_.needs[i];
          const bool all =
              std::all_of(needs.begin(), needs.end(), [&](size_t one) { return state.ended.count(one) != 0; });
          if (all && state.arrived.count(i) == 0) ready.push_back(i);
        }
        if (ready.empty()) return;
        number = ready[state.random() % ready.size()];
        state.arrived.insert(number);
      }
      // Calls of one site are in a loop: each needs the one before.
      order_->arrive(state.rank, program_.needs[number].empty() ? static_cast<int64_t>(number) : -1 - chain(number),
                     program_.runs[number], std::make_shared<Call>(shared_from_this(), state, number));
    }
  }

  /// The first call of the chain that call `number` continues.
  int64_t chain(size_t number) const {
    while (!program_.needs[number].empty()) number = program_.needs[number].front();
    return static_cast<int64_t>(number);
  }

  const Program program_;
  std::shared_ptr<Order> order_;
  std::vector<State> states_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool failed_ = false;
};

/// Chains of calls, as in loops, and calls that nothing needs.
Program drawProgram(std::mt19937& random) {
  Program program;
  std::vector<size_t> ends;  // of chains
  const size_t calls = 1 + random() % 20;
  for (size_t i = 0; i < calls; ++i) {
    const bool continues = !ends.empty() && random() % 2 == 0;
    if (!continues) {
      ends.push_back(i);
      program.needs.emplace_back();
      program.runs.push_back(static_cast<int64_t>(random() % 2));
      continue;
    }
    size_t& end = ends[random() % ends.size()];
    program.needs.push_back({end});
    program.runs.push_back(program.runs[end]);
    end = i;
  }
  return program;
}

TEST_CASE("ranks that arrive at calls in random orders run them in one order") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    const auto program = drawProgram(random);
    const auto count = static_cast<int32_t>(1 + random() % 5);
    CAPTURE(round, count, program.needs.size());
    const auto ranks = std::make_shared<Ranks>(program, count, static_cast<unsigned>(random()));
    ranks->run();
    for (size_t rank = 0; rank < static_cast<size_t>(count); ++rank) {
      REQUIRE(ranks->ran(rank) == ranks->ran(0));
      REQUIRE(ranks->ran(rank).size() == program.needs.size());
      for (const auto& [number, error] : ranks->ended(rank)) REQUIRE(error == "");
    }
  }
}

TEST_CASE("calls of an execution with an error end on all ranks, and those of others run") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    auto program = drawProgram(random);
    program.failing = random() % program.needs.size();
    const auto count = static_cast<int32_t>(1 + random() % 5);
    CAPTURE(round, count, program.needs.size(), program.failing);
    const auto ranks = std::make_shared<Ranks>(program, count, static_cast<unsigned>(random()));
    ranks->run();
    REQUIRE(ranks->ended(0).at(program.failing) == "failed");
    for (size_t rank = 0; rank < static_cast<size_t>(count); ++rank) {
      for (const auto& [number, error] : ranks->ended(rank)) {
        const bool same = program.runs[number] == program.runs[program.failing];
        REQUIRE((error == "" || (same && error == "failed")));
      }
    }
  }
}

TEST_CASE("an execution ends if a rank does not arrive at one of its calls within the timeout") {
  struct Call final : OrderedCall {
    std::string run() override { return ""; }
    void end(const std::string& text) override { ended.set_value(text); }
    std::promise<std::string> ended;
  };
  const auto order = std::make_shared<Order>(2, std::chrono::milliseconds(20));
  const auto alone = std::make_shared<Call>(), stuck = std::make_shared<Call>(), later = std::make_shared<Call>(),
             of0 = std::make_shared<Call>();
  order->arrive(0, 1, 7, alone);  // rank 1 takes another branch
  order->arrive(1, 2, 7, stuck);
  order->arrive(1, 3, 8, later);  // in the next execution
  order->arrive(0, 3, 8, of0);
  CHECK(alone->ended.get_future().get() == "");
  CHECK(stuck->ended.get_future().get().find("rank 1 did not arrive within 20 ms") != std::string::npos);
  CHECK(later->ended.get_future().get() == "");
  CHECK(of0->ended.get_future().get() == "");
}

TEST_CASE("a communicator that closes ends the calls that wait") {
  struct Waiting final : OrderedCall {
    std::string run() override { return "ran"; }
    void end(const std::string& text) override { error = text; }
    std::string error = "waits";
  };
  const auto order = std::make_shared<Order>(2);
  const auto first = std::make_shared<Waiting>(), second = std::make_shared<Waiting>();
  struct Blocked final : OrderedCall {
    std::string run() override {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return released; });
      return "";
    }
    void end(const std::string&) override {
      const std::lock_guard lock(mutex);
      ended = true;
      changed.notify_all();
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool released = false, ended = false;
  };
  const auto blocked = std::make_shared<Blocked>();
  order->arrive(0, 1, 0, blocked);
  order->arrive(0, 2, 0, first);
  order->arrive(1, 2, 0, second);  // after site 1, at which rank 1 never arrives
  CHECK(first->error == "waits");
  CHECK(second->error == "waits");
  order->close();
  CHECK(first->error == "seqpar: the communicator is closed");
  CHECK(second->error == "seqpar: the communicator is closed");
  std::unique_lock lock(blocked->mutex);
  blocked->released = true;
  blocked->changed.notify_all();
  blocked->changed.wait(lock, [&] { return blocked->ended; });
}

}  // namespace
