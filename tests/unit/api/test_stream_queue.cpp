// Work of host streams on the thread that waits for it.
#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/current_call.h"
#include "comm/outer_call.h"
#include "comm/stream_queue.h"
#include "common/ranks.h"

using namespace seqpar::test;
using seqpar::Communicator;
using seqpar::CurrentCall;
using seqpar::OuterCall;
using seqpar::StreamErrors;
using seqpar::StreamQueue;

namespace {

/// Queues without a worker: only threads that wait run their items.
struct Queue {
  StreamErrors errors;
  StreamQueue queue{errors, 0};
};

struct Stream {
  Stream() { expectSuccess(seqparStreamCreate(&handle), "seqparStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { seqparStreamDestroy(handle); }
  void launch(void (*function)(void*), void* argument) const {
    expectSuccess(seqparStreamLaunch(handle, function, argument), "seqparStreamLaunch");
  }
  void synchronize() const { expectSuccess(seqparStreamSynchronize(handle), "seqparStreamSynchronize"); }
  seqparStream_t handle = nullptr;
};

struct Event {
  Event() { expectSuccess(seqparEventCreate(&handle), "seqparEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { seqparEventDestroy(handle); }
  seqparEvent_t handle = nullptr;
};

void count(void* number) {
  ++*static_cast<int*>(number);
}

/// Waits often and soon enough that the stream leaves its work to this thread.
void waitPromptly(const Stream& stream) {
  int runs = 0;
  for (int i = 0; i < 50; ++i) {
    stream.launch(count, &runs);
    stream.synchronize();
  }
  expect(runs == 50, "ran ", runs, " of 50 functions");
}

}  // namespace

TEST_CASE("a queue that ends takes no work, which would never run") {
  Queue of;
  bool ran = false;
  of.queue.enqueue([&ran] { ran = true; });
  of.queue.stop();
  CHECK_THROWS_WITH(of.queue.enqueue([] {}), "the stream is being destroyed, expected a stream in use");
  of.queue.wait(of.queue.last());
  CHECK(ran);
  CHECK(of.queue.last() == 1);
}

TEST_CASE("a thread that waits for an item runs it and all before it, in order, and no later ones") {
  Queue one;
  std::vector<int> order;
  std::thread::id ranOn;
  for (int i = 1; i <= 5; ++i) {
    CHECK(one.queue.enqueue([&, i] {
      order.push_back(i);
      ranOn = std::this_thread::get_id();
    }) == static_cast<size_t>(i));
  }
  CHECK_FALSE(one.queue.query(1));
  one.queue.wait(3);
  CHECK(order == std::vector<int>{1, 2, 3});
  CHECK(ranOn == std::this_thread::get_id());
  CHECK(one.queue.finished(3));
  CHECK_FALSE(one.queue.query(4));
  one.queue.wait(2);  // has passed
  CHECK(order.size() == 3);
  one.queue.wait(one.queue.last());
  CHECK(order == std::vector<int>{1, 2, 3, 4, 5});
  CHECK(one.queue.query(5));
}

TEST_CASE("an item that waits for another queue runs that queue's items up to the awaited one") {
  Queue first, second;
  std::string order;
  first.queue.enqueue([&] { order += "a"; });
  const size_t awaited = first.queue.enqueue([&] { order += "b"; });
  second.queue.enqueue([&] { order += "1"; });
  second.queue.enqueue([&] { first.queue.wait(awaited); });
  const size_t before = second.queue.enqueue([&] { order += "2"; });
  first.queue.enqueue([&] { second.queue.wait(before); });
  first.queue.enqueue([&] { order += "c"; });
  first.queue.wait(first.queue.last());
  CHECK(order == "ab12c");
}

TEST_CASE("errors of items on a thread that waits are the stream's, and later items run") {
  Queue one;
  bool ran = false;
  one.queue.enqueue([] { seqpar::fail(seqparInvalidUsage, "the first"); });
  one.queue.enqueue([] { throw std::bad_alloc(); });
  one.queue.enqueue([&] { ran = true; });
  one.queue.wait(3);
  CHECK(ran);
  CHECK(one.errors.unreported().size() == 1);
  CHECK_THROWS_WITH(one.errors.report(), "the first");
  CHECK_NOTHROW(one.errors.report());
}

TEST_CASE("items do not belong to the call in which a thread waits for them") {
  Queue one;
  std::string inside = "not run";
  one.queue.enqueue([&] { inside = CurrentCall::name(); });
  const CurrentCall call("seqparStreamSynchronize");
  one.queue.wait(1);
  CHECK(inside.empty());
  CHECK(std::string(CurrentCall::name()) == "seqparStreamSynchronize");
}

TEST_CASE("threads that wait for items of a queue that another thread runs continue when these are finished") {
  Queue one;
  std::atomic<bool> begun{false}, gate{false};
  std::atomic<int> ran{0};
  one.queue.enqueue([&] {
    begun = true;
    begun.notify_all();
    gate.wait(false);
  });
  for (int i = 0; i < 20; ++i) one.queue.enqueue([&] { ++ran; });
  std::thread runner([&] { one.queue.wait(1); });  // leaves 20 items to those that wait for them
  begun.wait(false);
  std::vector<std::thread> waiting;
  for (size_t item : {5, 21, 10, 21}) waiting.emplace_back([&, item] { one.queue.wait(item); });
  CHECK(ran == 0);
  gate = true;
  gate.notify_all();
  runner.join();
  for (auto& thread : waiting) thread.join();
  CHECK(ran == 20);
}

TEST_CASE("the worker leaves the queue to a thread that waits, after the item that it runs") {
  Queue one;
  std::atomic<bool> begun{false};
  std::vector<std::thread::id> ranOn;
  one.queue.enqueue([&] {
    begun = true;
    begun.notify_all();
    while (!one.queue.awaited()) std::this_thread::yield();
    ranOn.push_back(std::this_thread::get_id());
  });
  for (int i = 0; i < 20; ++i) one.queue.enqueue([&] { ranOn.push_back(std::this_thread::get_id()); });
  std::thread worker([&] { one.queue.serve(); });
  begun.wait(false);
  one.queue.wait(15);
  const auto workers = worker.get_id();
  one.queue.stop();  // the worker runs what no thread waits for
  worker.join();
  REQUIRE(ranOn.size() == 21);
  CHECK(ranOn.front() == workers);
  for (size_t i = 1; i < 15; ++i) CHECK(ranOn[i] == std::this_thread::get_id());
  for (size_t i = 15; i < 21; ++i) CHECK(ranOn[i] == workers);
}

TEST_CASE("threads that wait for a queue with a worker, and queues that wait for each other, run all items in order") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  Queue queues[2];
  std::vector<std::thread> threads;
  for (Queue& one : queues) threads.emplace_back([&] { one.queue.serve(); });
  std::atomic<int> order[2] = {0, 0}, wrong{0};
  for (int owner = 0; owner < 3; ++owner) {
    threads.emplace_back([&, owner] {
      std::mt19937 random(seed + static_cast<unsigned>(owner));
      for (int round = 0; round < 300; ++round) {
        const size_t which = random() % 2;
        Queue &mine = queues[which], &other = queues[1 - which];
        const size_t burst = 1 + random() % 4;
        for (size_t i = 0; i < burst; ++i) mine.queue.enqueue([&order, which] { ++order[which]; });
        if (which == 0 && random() % 8 == 0)
          mine.queue.enqueue([&, last = other.queue.last()] {
            other.queue.wait(last);
            ++order[0];
          });
        if (random() % 3 == 0) continue;
        const size_t last = mine.queue.last();
        mine.queue.wait(last);
        if (!mine.queue.finished(last) || order[which] < static_cast<int>(last)) ++wrong;
      }
    });
  }
  for (size_t i = 2; i < threads.size(); ++i) threads[i].join();
  for (Queue& one : queues) one.queue.stop();
  for (size_t i = 0; i < 2; ++i) threads[i].join();
  CHECK(wrong == 0);
  for (size_t i = 0; i < 2; ++i) CHECK(order[i] == static_cast<int>(queues[i].queue.last()));
}

TEST_CASE("work runs without a wait, also on a stream that was always waited for at once") {
  const Stream stream;
  waitPromptly(stream);
  for (int round = 0; round < 3; ++round) {
    std::atomic<bool> done{false};
    stream.launch(
        [](void* flag) {
          static_cast<std::atomic<bool>*>(flag)->store(true);
          static_cast<std::atomic<bool>*>(flag)->notify_all();
        },
        &done);
    done.wait(false);
    stream.synchronize();
  }
}

TEST_CASE("a query or another stream's wait starts the work of a stream that was always waited for at once") {
  const Stream stream, other;
  const Event event;
  waitPromptly(stream);
  waitPromptly(other);
  int runs = 0;
  stream.launch(count, &runs);
  while (seqparStreamQuery(stream.handle) == seqparInProgress) std::this_thread::yield();
  CHECK(runs == 1);
  waitPromptly(stream);
  stream.launch(count, &runs);
  expectSuccess(seqparEventRecord(event.handle, stream.handle), "seqparEventRecord");
  expectSuccess(seqparStreamWaitEvent(other.handle, event.handle), "seqparStreamWaitEvent");
  other.launch(count, &runs);
  other.synchronize();
  CHECK(runs == 3);
}

TEST_CASE("a function on a stream does not touch the error text of the thread that waits for it") {
  const Stream stream;
  for (int round = 0; round < 20; ++round) {
    CHECK(seqparStreamSynchronize(nullptr) == seqparInvalidArgument);
    const std::string before = seqparGetLastError(nullptr);
    stream.launch([](void*) { seqparEventCreate(nullptr); }, nullptr);
    stream.synchronize();
    CHECK(seqparGetLastError(nullptr) == before);
  }
}

TEST_CASE("an outer call of the waiting thread is set aside for work that has one of its own") {
  const int addresses[2] = {};  // of communicators; never followed
  const auto* const comm = reinterpret_cast<const Communicator*>(&addresses[0]);
  OuterCall::begin(comm, "outerStep", 1);
  OuterCall::nameThread();
  {
    const CurrentCall::Outside outside;
    const OuterCall::Outside outer;
    CHECK(OuterCall::current(comm) == nullptr);
    OuterCall::begin(comm, "innerStep", 2);
    OuterCall::nameThread();
    CHECK(std::string(CurrentCall::name()) == "innerStep");
  }
  REQUIRE(OuterCall::current(comm) != nullptr);
  CHECK(OuterCall::current(comm)->nameOf("part") == "outerStep (part)");
  CHECK(std::string(CurrentCall::name()) == "outerStep");
  OuterCall::end();
  CHECK(OuterCall::current(comm) == nullptr);
  CHECK(std::string(CurrentCall::name()).empty());
}

TEST_CASE("streams that wait for each other's events run all work once and in order, whichever threads wait") {
  constexpr int kStreams = 3, kSteps = 400;
  const Stream streams[kStreams];
  struct Step {
    std::vector<int>* order;
    int number;
  };
  std::vector<int> orders[kStreams];
  std::vector<Step> steps;
  steps.reserve(kSteps);
  std::atomic<bool> enqueued{false};
  std::atomic<int> bad{0};
  std::vector<std::thread> others;
  for (const auto& stream : streams) {
    others.emplace_back([&] {
      while (!enqueued) {
        if (seqparStreamSynchronize(stream.handle) != seqparSuccess) ++bad;
      }
    });
  }
  std::mt19937 random(7);
  for (int i = 0; i < kSteps; ++i) {
    const auto from = random() % kStreams, to = random() % kStreams;
    steps.push_back({&orders[from], i});
    streams[from].launch(
        [](void* argument) {
          const auto* step = static_cast<Step*>(argument);
          step->order->push_back(step->number);
        },
        &steps.back());
    const Event event;
    expectSuccess(seqparEventRecord(event.handle, streams[from].handle), "seqparEventRecord");
    if (i % 7 == 0) expectSuccess(seqparEventSynchronize(event.handle), "seqparEventSynchronize");
    expectSuccess(seqparStreamWaitEvent(streams[to].handle, event.handle), "seqparStreamWaitEvent");
  }
  enqueued = true;
  for (auto& thread : others) thread.join();
  for (const auto& stream : streams) stream.synchronize();
  CHECK(bad == 0);
  size_t total = 0;
  for (const auto& order : orders) {
    CHECK(std::is_sorted(order.begin(), order.end()));
    total += order.size();
  }
  CHECK(total == kSteps);
}
