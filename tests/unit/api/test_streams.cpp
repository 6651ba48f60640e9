#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/address_limit.h"
#include "common/ranks.h"
#include "common/sanitized.h"

using namespace seqpar::test;

namespace {

struct Stream {
  Stream() { REQUIRE(seqparStreamCreate(&handle) == seqparSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { seqparStreamDestroy(handle); }
  seqparStream_t handle = nullptr;
};

struct Event {
  Event() { REQUIRE(seqparEventCreate(&handle) == seqparSuccess); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { seqparEventDestroy(handle); }
  seqparEvent_t handle = nullptr;
};

void waitFor(void* flag) {
  static_cast<std::atomic<bool>*>(flag)->wait(false);
}

void open(std::atomic<bool>& gate) {
  gate = true;
  gate.notify_all();
}

}  // namespace

TEST_CASE("work of a stream runs in order while the caller continues") {
  const Stream stream;
  std::atomic<bool> gate{false};
  struct Step {
    std::vector<int>* order;
    int number;
  };
  std::vector<int> order;
  std::vector<Step> steps;
  for (int i = 0; i < 100; ++i) steps.push_back({&order, i});
  REQUIRE(seqparStreamLaunch(stream.handle, waitFor, &gate) == seqparSuccess);
  for (auto& step : steps) {
    const auto append = [](void* argument) {
      auto* s = static_cast<Step*>(argument);
      s->order->push_back(s->number);
    };
    REQUIRE(seqparStreamLaunch(stream.handle, append, &step) == seqparSuccess);
  }
  CHECK(seqparStreamQuery(stream.handle) ==
        seqparInProgress);  // no work has run: the call returned while the gate is closed
  open(gate);
  CHECK(seqparStreamSynchronize(stream.handle) == seqparSuccess);
  CHECK(seqparStreamQuery(stream.handle) == seqparSuccess);
  REQUIRE(order.size() == 100);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("an event orders two streams and measures time") {
  const Stream first, second;
  const Event begin, end;
  std::atomic<bool> gate{false};
  int value = 0;
  CHECK(seqparEventQuery(begin.handle) == seqparSuccess);  // never recorded: nothing to wait for
  CHECK(seqparEventSynchronize(begin.handle) == seqparSuccess);
  float ms = 0;
  CHECK(seqparEventElapsedTime(&ms, begin.handle, end.handle) == seqparInvalidUsage);

  REQUIRE(seqparEventRecord(begin.handle, first.handle) == seqparSuccess);
  REQUIRE(seqparStreamLaunch(first.handle, waitFor, &gate) == seqparSuccess);
  REQUIRE(seqparStreamLaunch(
              first.handle, [](void* v) { *static_cast<int*>(v) = 1; }, &value) == seqparSuccess);
  REQUIRE(seqparEventRecord(end.handle, first.handle) == seqparSuccess);
  REQUIRE(seqparStreamWaitEvent(second.handle, end.handle) == seqparSuccess);
  REQUIRE(seqparStreamLaunch(
              second.handle, [](void* v) { *static_cast<int*>(v) += 10; }, &value) == seqparSuccess);
  CHECK(seqparEventQuery(end.handle) == seqparInProgress);
  CHECK(seqparEventSynchronize(begin.handle) == seqparSuccess);
  CHECK(seqparEventElapsedTime(&ms, begin.handle, end.handle) == seqparInProgress);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  open(gate);
  CHECK(seqparStreamSynchronize(second.handle) == seqparSuccess);
  CHECK(value == 11);
  CHECK(seqparEventElapsedTime(&ms, begin.handle, end.handle) == seqparSuccess);
  CHECK(ms >= 5);
}

TEST_CASE("destroying a stream waits for its work, and a destroyed event still orders its waiters") {
  std::atomic<bool> gate{false};
  int value = 0;
  seqparStream_t stream = nullptr;
  const Stream other;
  seqparEvent_t event = nullptr;
  REQUIRE(seqparStreamCreate(&stream) == seqparSuccess);
  REQUIRE(seqparEventCreate(&event) == seqparSuccess);
  REQUIRE(seqparStreamLaunch(stream, waitFor, &gate) == seqparSuccess);
  REQUIRE(seqparEventRecord(event, stream) == seqparSuccess);
  REQUIRE(seqparStreamWaitEvent(other.handle, event) == seqparSuccess);
  REQUIRE(seqparStreamLaunch(
              other.handle, [](void* v) { *static_cast<int*>(v) = 3; }, &value) == seqparSuccess);
  REQUIRE(seqparEventDestroy(event) == seqparSuccess);
  CHECK(seqparStreamQuery(other.handle) == seqparInProgress);
  open(gate);
  CHECK(seqparStreamDestroy(stream) == seqparSuccess);
  CHECK(seqparStreamSynchronize(other.handle) == seqparSuccess);
  CHECK(value == 3);
}

TEST_CASE("work can call on its stream while another thread destroys the stream") {
  struct Calls {
    seqparStream_t stream = nullptr;
    std::atomic<bool> began{false}, queried{false};
    int failed = 0;
  } calls;
  REQUIRE(seqparStreamCreate(&calls.stream) == seqparSuccess);
  const auto work = [](void* argument) {
    auto& mine = *static_cast<Calls*>(argument);
    open(mine.began);
    waitFor(&mine.queried);  // however late the other thread is
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < end) {
      if (seqparStreamFail(mine.stream, seqparSystemError, "the test's work") != seqparSuccess) ++mine.failed;
    }
  };
  REQUIRE(seqparStreamLaunch(calls.stream, work, &calls) == seqparSuccess);
  CHECK(seqparStreamQuery(calls.stream) == seqparInProgress);  // the stream's thread runs it
  waitFor(&calls.began);
  open(calls.queried);
  CHECK(seqparStreamDestroy(calls.stream) == seqparSuccess);
  CHECK(calls.failed == 0);
}

TEST_CASE("work cannot destroy its stream") {
  struct Call {
    seqparStream_t stream = nullptr;
    seqparResult_t result = seqparSuccess;
    std::string text;
  };
  for (const bool waits : {false, true}) {  // on the stream's thread or on the thread that waits
    const Stream stream;
    Call call;
    call.stream = stream.handle;
    REQUIRE(seqparStreamLaunch(
                stream.handle,
                [](void* argument) {
                  auto& mine = *static_cast<Call*>(argument);
                  mine.result = seqparStreamDestroy(mine.stream);
                  mine.text = seqparGetLastError(nullptr);
                },
                &call) == seqparSuccess);
    while (!waits && seqparStreamQuery(stream.handle) == seqparInProgress) std::this_thread::yield();
    REQUIRE(seqparStreamSynchronize(stream.handle) == seqparSuccess);
    CHECK(call.result == seqparInvalidUsage);
    CHECK(call.text == "seqparStreamDestroy: called by work of this stream, expected another caller");
  }
}

TEST_CASE("collectives on one or two streams run in call order while the caller continues") {
  const auto errors = onCommunicator(3, [](seqparComm_t comm, int rank) {
    seqparStream_t streams[2];
    for (auto& stream : streams) expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
    constexpr int kCalls = 50;
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    std::vector<int> sent(kCalls), received(kCalls, -1);
    for (int i = 0; i < kCalls; ++i) {
      sent[i] = rank * 1000 + i;
      // The second stream is chosen by rank-dependent luck: order is the communicator's, not the streams'.
      expectSuccess(seqparSendRecv(&sent[i], sizeof(int), next, &received[i], sizeof(int), previous, comm,
                                   streams[(i * (rank + 1)) % 2]),
                    "seqparSendRecv", comm);
    }
    for (auto* stream : streams) expectSuccess(seqparStreamSynchronize(stream), "seqparStreamSynchronize");
    for (int i = 0; i < kCalls; ++i) expect(received[i] == previous * 1000 + i, "call ", i, " received ", received[i]);
    for (auto* stream : streams) expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("bad streams, events and functions are refused") {
  const Stream stream;
  seqparEvent_t event = nullptr;
  REQUIRE(seqparEventCreate(&event) == seqparSuccess);
  float ms = -1;
  CHECK(seqparStreamLaunch(stream.handle, nullptr, nullptr) == seqparInvalidArgument);
  CHECK(seqparStreamCreate(nullptr) == seqparInvalidArgument);
  CHECK(seqparEventCreate(nullptr) == seqparInvalidArgument);
  CHECK(seqparEventElapsedTime(nullptr, event, event) == seqparInvalidArgument);
  CHECK(seqparStreamDestroy(nullptr) == seqparSuccess);
  CHECK(seqparEventDestroy(nullptr) == seqparSuccess);
  int other = 0;
  auto* const noStream = reinterpret_cast<seqparStream_t>(&other);
  auto* const noEvent = reinterpret_cast<seqparEvent_t>(&other);
  CHECK(seqparStreamDestroy(noStream) == seqparInvalidArgument);
  CHECK(seqparEventDestroy(noEvent) == seqparInvalidArgument);
  for (seqparStream_t bad : {noStream, seqparStream_t{nullptr}}) {
    CHECK(seqparStreamSynchronize(bad) == seqparInvalidArgument);
    CHECK(seqparStreamQuery(bad) == seqparInvalidArgument);
    CHECK(seqparStreamLaunch(
              bad, [](void*) {}, nullptr) == seqparInvalidArgument);
    CHECK(seqparEventRecord(event, bad) == seqparInvalidArgument);
    CHECK(seqparStreamWaitEvent(bad, event) == seqparInvalidArgument);
  }
  for (seqparEvent_t bad : {noEvent, seqparEvent_t{nullptr}}) {
    CHECK(seqparEventRecord(bad, stream.handle) == seqparInvalidArgument);
    CHECK(seqparStreamWaitEvent(stream.handle, bad) == seqparInvalidArgument);
    CHECK(seqparEventSynchronize(bad) == seqparInvalidArgument);
    CHECK(seqparEventQuery(bad) == seqparInvalidArgument);
    CHECK(seqparEventElapsedTime(&ms, bad, event) == seqparInvalidArgument);
    CHECK(seqparEventElapsedTime(&ms, event, bad) == seqparInvalidArgument);
  }
  CHECK(ms == -1);
  CHECK(seqparEventDestroy(event) == seqparSuccess);
}

#ifndef SEQPAR_SANITIZED
TEST_CASE("a collective that cannot be enqueued without memory leaves its communicator usable") {
  const Stream stream;
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  std::atomic<bool> gate{false};
  REQUIRE(seqparStreamLaunch(stream.handle, waitFor, &gate) == seqparSuccess);
  int sent = 1, received = 0;
  const auto copy = [&](void* on) {
    return seqparSendRecv(&sent, sizeof(int), 0, &received, sizeof(int), 0, comm, on);
  };
  seqparResult_t result = seqparSuccess;
  {
    const AddressLimit limit(size_t{4} << 20);
    for (int call = 0; result == seqparSuccess && call < 1000000; ++call) result = copy(stream.handle);
  }
  CHECK(result == seqparSystemError);
  open(gate);
  CHECK(seqparStreamSynchronize(stream.handle) == seqparSuccess);
  CHECK(received == 1);
  sent = 2;
  CHECK(copy(nullptr) == seqparSuccess);  // would wait for the failed call's turn
  CHECK(received == 2);
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
}

TEST_CASE("a stream without a thread is a SystemError") {
  std::vector<seqparStream_t> streams;
  seqparResult_t result = seqparSuccess;
  {
    const AddressLimit limit(size_t{64} << 20);
    while (result == seqparSuccess && streams.size() < 1000) {
      seqparStream_t stream = nullptr;
      result = seqparStreamCreate(&stream);
      if (result == seqparSuccess) streams.push_back(stream);
    }
  }
  CHECK(result == seqparSystemError);
  CHECK_THAT(seqparGetLastError(nullptr), Catch::StartsWith("seqparStreamCreate: no thread for a stream: "));
  for (seqparStream_t stream : streams) CHECK(seqparStreamDestroy(stream) == seqparSuccess);
}
#endif
