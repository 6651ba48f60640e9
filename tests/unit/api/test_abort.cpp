// Abnormal ends: abort from another thread, an absent rank, pending work on streams.
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "common/ranks.h"
#include "common/timeouts.h"

using namespace seqpar::test;
using namespace std::chrono_literals;

namespace {

seqparResult_t receiveFrom(int peer, seqparComm_t comm, void* stream) {
  static thread_local char byte;
  return seqparSendRecv(nullptr, 0, SEQPAR_NO_PEER, &byte, 1, peer, comm, stream);
}

/// Two ranks as threads with a given timeout, each running `body`.
std::string onPair(int timeoutMs, int transport, const std::function<void(seqparComm_t, int)>& body) {
  seqparUniqueId id;
  if (seqparGetUniqueId(&id) != seqparSuccess) return seqparGetLastError(nullptr);
  return onThreads(2, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = timeoutMs;
    config.transport = transport;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, 2, id, rank, &config), "seqparCommInitRankConfig");
    body(comm, rank);
  });
}

}  // namespace

TEST_CASE("abort unblocks the waiting thread and the other rank, both with the reason") {
  const int transport = GENERATE(int{seqparTransportShared}, int{seqparTransportNetwork});
  CAPTURE(transport);
  // The pause before the abort grows: a thread that is delayed for longer would use a destroyed handle.
  const auto wrong = withGrowingTimeout(100, [&](int pauseMs) {
    return onPair(kNoTimeoutMs, transport, [pauseMs](seqparComm_t comm, int rank) {
      std::jthread aborter;
      if (rank == 0) {
        aborter = std::jthread([comm, pauseMs] {
          std::this_thread::sleep_for(std::chrono::milliseconds(pauseMs));
          seqparCommAbort(comm);
        });
      }
      const auto result = receiveFrom(1 - rank, comm, nullptr);  // neither sends
      const std::string text = seqparGetLastError(nullptr);
      if (rank == 1) {
        seqparResult_t state = seqparSuccess;
        expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError");
        expect(state == seqparRemoteError, "state ", state);
        expect(receiveFrom(0, comm, nullptr) == seqparRemoteError, "a lost communicator took work");
        expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
      }
      expect(result == seqparRemoteError, "result ", result, ": ", text);
      expect(text.find("seqparCommAbort was called on rank 0") != std::string::npos, text);
    });
  });
  CHECK(wrong == "");
}

TEST_CASE("abort ends the work on a stream") {
  std::barrier enqueued(2);  // after an abort, neither rank accepts further work
  const auto errors = onPair(kNoTimeoutMs, seqparTransportAuto, [&](seqparComm_t comm, int rank) {
    seqparStream_t stream = nullptr;
    expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
    for (int i = 0; i < 3; ++i) expectSuccess(receiveFrom(1 - rank, comm, stream), "seqparSendRecv", comm);
    enqueued.arrive_and_wait();
    std::this_thread::sleep_for(50ms);
    expectSuccess(seqparCommAbort(comm), "seqparCommAbort");
    const auto result = seqparStreamSynchronize(stream);
    expect(result == seqparRemoteError, "result ", result);
    expectSuccess(seqparStreamSynchronize(stream), "the error is told once");
    expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("a peer that never connects is a RemoteError after the timeout on every rank") {
  const int transport = GENERATE(int{seqparTransportShared}, int{seqparTransportNetwork});
  CAPTURE(transport);
  const auto wrong = withGrowingTimeout(1000, [&](int timeoutMs) {
    return onPair(timeoutMs, transport, [&](seqparComm_t comm, int rank) {
      if (rank == 0) {
        const auto start = std::chrono::steady_clock::now();
        const auto result = receiveFrom(1, comm, nullptr);
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
        const std::string text = seqparGetLastError(comm);
        expect(result == seqparRemoteError, "result ", result);
        expect(text.find("seqparSendRecv") != std::string::npos && text.find("rank 1") != std::string::npos, text);
        expect(took.count() >= timeoutMs, "took only ", took.count(), " ms");
      } else {
        seqparResult_t state = seqparSuccess;
        while (state == seqparSuccess) {
          std::this_thread::sleep_for(10ms);
          expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError");
        }
        expect(state == seqparRemoteError, "rank 1 was not told: ", state);
      }
      expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
    });
  });
  CHECK(wrong == "");
}

TEST_CASE("calls, aborts and queries race without harm") {
  const auto seed = std::chrono::steady_clock::now().time_since_epoch().count() % 1000;
  for (int round = 0; round < 5; ++round) {
    const auto errors = onPair(kNoTimeoutMs, seqparTransportAuto, [&](seqparComm_t comm, int rank) {
      std::jthread aborter([&, comm] {
        std::this_thread::sleep_for(std::chrono::microseconds((seed * 37 + round * 1009 + rank * 499) % 5000));
        seqparCommAbort(comm);
      });
      int mine = rank, other = -1;
      while (true) {
        const auto result = seqparSendRecv(&mine, sizeof(int), 1 - rank, &other, sizeof(int), 1 - rank, comm, nullptr);
        if (result != seqparSuccess) {
          // After the abort, the handle is invalid and the error says so.
          expect(result == seqparRemoteError || result == seqparInvalidArgument, "result ", result);
          break;
        }
        expect(other == 1 - rank, "received ", other);
        seqparResult_t state = seqparSuccess;
        seqparCommGetAsyncError(comm, &state);
      }
    });
    CHECK(errors == "");
  }
}

TEST_CASE("the error that ended a communicator is kept after refused calls") {
  const auto errors = onPair(kNoTimeoutMs, seqparTransportAuto, [](seqparComm_t comm, int rank) {
    if (rank == 1) return expectSuccess(seqparCommAbort(comm), "seqparCommAbort");  // never calls split
    seqparComm_t part = nullptr;
    expect(seqparCommSplit(comm, 0, 0, &part, nullptr) == seqparRemoteError, "split alone");
    expect(receiveFrom(1, comm, nullptr) == seqparRemoteError, "a lost communicator took work");
    const std::string text = seqparGetLastError(comm);
    expect(text.rfind("seqparCommSplit: ", 0) == 0, text);
    expect(text.find("rank 1") != std::string::npos, text);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  CHECK(errors == "");
}
