// Errors of enqueued work reach all that wait for it: through events, from functions on streams, and on all ranks.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/ranks.h"
#include "common/timeouts.h"
#include "seqpar/exchange.h"

using namespace seqpar::test;

namespace {

struct Stream {
  Stream() { expectSuccess(seqparStreamCreate(&handle), "seqparStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { seqparStreamDestroy(handle); }
  seqparStream_t handle = nullptr;
};

struct Event {
  Event() { expectSuccess(seqparEventCreate(&handle), "seqparEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { seqparEventDestroy(handle); }
  void join(const Stream& later, const Stream& earlier) const {
    expectSuccess(seqparEventRecord(handle, earlier.handle), "seqparEventRecord");
    expectSuccess(seqparStreamWaitEvent(later.handle, handle), "seqparStreamWaitEvent");
  }
  seqparEvent_t handle = nullptr;
};

void failing(void* stream) {
  seqparStreamFail(static_cast<seqparStream_t>(stream), seqparSystemError, "a function failed");
}

void launchFailure(const Stream& stream) {
  expectSuccess(seqparStreamLaunch(stream.handle, failing, stream.handle), "seqparStreamLaunch");
}

std::string lastError() {
  return seqparGetLastError(nullptr);
}

/// Ranks as threads with communicators without a timeout, which compare arguments if `checked`.
std::string onRanks(int ranks, bool checked, const std::function<void(seqparComm_t, int)>& body) {
  seqparUniqueId id;
  if (seqparGetUniqueId(&id) != seqparSuccess) return lastError();
  return onThreads(ranks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = kNoTimeoutMs;
    config.checkArguments = checked ? 1 : 0;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    try {
      body(comm, rank);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
    seqparCommDestroy(comm);
  });
}

seqparResult_t gather(float mine, float* whole, int64_t tokens, seqparComm_t comm, void* stream) {
  static thread_local std::vector<float> shards[8];
  static thread_local size_t next = 0;
  auto& shard = shards[next++ % 8];  // must stay unchanged until the work is done
  shard.assign(static_cast<size_t>(tokens), mine);
  seqparShards_t given = SEQPAR_SHARDS_INITIALIZER;
  given.tokens = tokens;
  return seqparAllGather(shard.data(), whole, &given, comm, stream);
}

}  // namespace

TEST_CASE("an error reaches every waiting stream, directly or through others, once each") {
  const Stream first, second, third, apart;
  const Event event, other;
  launchFailure(first);
  event.join(second, first);
  other.join(third, second);
  for (const Stream* stream : {&third, &second, &first}) {
    CHECK(seqparStreamSynchronize(stream->handle) == seqparSystemError);
    CHECK(lastError() == "seqparStreamSynchronize: a function failed");
    CHECK(seqparStreamSynchronize(stream->handle) == seqparSuccess);
  }
  CHECK(seqparStreamSynchronize(apart.handle) == seqparSuccess);
}

TEST_CASE("an event recorded before the error has none, one recorded after it has it until reported") {
  const Stream stream, waiting;
  const Event before, behind, later;
  REQUIRE(seqparEventRecord(before.handle, stream.handle) == seqparSuccess);
  launchFailure(stream);
  REQUIRE(seqparEventRecord(behind.handle, stream.handle) == seqparSuccess);
  CHECK(seqparEventSynchronize(before.handle) == seqparSuccess);
  CHECK(seqparEventQuery(before.handle) == seqparSuccess);
  for (int i = 0; i < 2; ++i) {
    CHECK(seqparEventSynchronize(behind.handle) == seqparSystemError);
    CHECK(lastError() == "seqparEventSynchronize: a function failed");
    CHECK(seqparEventQuery(behind.handle) == seqparSystemError);
  }
  CHECK(seqparStreamSynchronize(stream.handle) == seqparSystemError);
  later.join(waiting, stream);
  CHECK(seqparEventSynchronize(later.handle) == seqparSuccess);
  CHECK(seqparStreamSynchronize(waiting.handle) == seqparSuccess);
}

TEST_CASE("a stream that is never synchronized passes each new error on once") {
  const Stream mine, side;  // as the side stream of an operator
  const Event event;
  launchFailure(side);
  event.join(mine, side);
  CHECK(seqparStreamSynchronize(mine.handle) == seqparSystemError);
  event.join(side, mine);
  event.join(mine, side);
  CHECK(seqparStreamSynchronize(mine.handle) == seqparSuccess);  // it was thrown before
  launchFailure(side);
  event.join(mine, side);
  CHECK(seqparStreamSynchronize(mine.handle) == seqparSystemError);
}

TEST_CASE("an error that a stream got does not hide its own, which it returns whatever other streams return") {
  const Stream first, second, third, apart;
  const Event event;
  launchFailure(first);
  event.join(second, first);
  const auto own = [](void* stream) {
    seqparStreamFail(static_cast<seqparStream_t>(stream), seqparInvalidUsage, "its own error");
  };
  expectSuccess(seqparStreamLaunch(second.handle, own, second.handle), "seqparStreamLaunch");
  REQUIRE(seqparEventRecord(event.handle, second.handle) == seqparSuccess);
  CHECK(seqparEventSynchronize(event.handle) == seqparSystemError);
  CHECK(seqparStreamSynchronize(first.handle) == seqparSystemError);
  event.join(second, apart);  // drops the first stream's error, which was returned
  event.join(third, second);
  CHECK(seqparStreamSynchronize(third.handle) == seqparInvalidUsage);
  CHECK(lastError() == "seqparStreamSynchronize: its own error");
  event.join(second, apart);
  CHECK(seqparStreamSynchronize(second.handle) == seqparSystemError);  // the first one since the last call
  CHECK(seqparStreamSynchronize(second.handle) == seqparSuccess);
  for (const Stream* stream : {&first, &third}) CHECK(seqparStreamSynchronize(stream->handle) == seqparSuccess);
}

TEST_CASE("a difference on a side stream is reported by the joining stream and as the communicator's error") {
  const auto errors = onRanks(3, true, [](seqparComm_t comm, int rank) {
    const Stream mine, side;
    const Event event;
    std::vector<float> whole(12);
    event.join(side, mine);
    expectSuccess(gather(1, whole.data(), rank == 2 ? 3 : 4, comm, side.handle), "seqparAllGather", comm);
    event.join(mine, side);
    expect(seqparStreamSynchronize(mine.handle) == seqparInvalidUsage, "result of the stream: ", lastError());
    const std::string text = seqparGetLastError(comm);
    expect(text.find("seqparAllGather: the ranks disagree: ") == 0, "text of the communicator: ", text);
    expectSuccess(gather(1, whole.data(), 4, comm, side.handle), "seqparAllGather", comm);
    event.join(mine, side);
    expectSuccess(seqparStreamSynchronize(mine.handle), "the communicator stays", comm);
  });
  CHECK(errors == "");
}

TEST_CASE("a failed function on one rank's stream ends the communicator before anything behind it is sent") {
  const bool joined = GENERATE(false, true);  // the collective is on a stream that waits for the failed one
  CAPTURE(joined);
  const auto errors = onRanks(3, false, [&](seqparComm_t comm, int rank) {
    const Stream mine, side;
    const Event event;
    std::vector<float> whole(12, -1);
    if (rank == 1) launchFailure(mine);
    event.join(side, mine);
    const auto& on = joined ? side : mine;
    auto result = gather(static_cast<float>(rank), whole.data(), 4, comm, on.handle);
    if (result == seqparSuccess) result = seqparStreamSynchronize(on.handle);
    expect(result == (rank == 1 ? seqparSystemError : seqparRemoteError), "result ", result, ": ", lastError());
    seqparResult_t state = seqparSuccess;
    expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError");
    expect(state != seqparSuccess, "the communicator works");
    const std::string text = seqparGetLastError(comm);
    expect(text.find("rank 1 ended the communicator: a function failed") != std::string::npos, text);
  });
  CHECK(errors == "");
}

TEST_CASE("seqparCommFail ends the waits of all ranks with its text, and keeps the handle") {
  const auto errors = onRanks(3, false, [](seqparComm_t comm, int rank) {
    float whole[12] = {};
    seqparResult_t result = seqparSuccess;
    if (rank == 2) {
      expectSuccess(seqparCommFail(comm, "no more data"), "seqparCommFail");
      expectSuccess(seqparCommFail(comm, "a second reason"), "seqparCommFail");
      result = gather(0, whole, 4, comm, nullptr);
    } else {
      result = gather(0, whole, 4, comm, nullptr);
    }
    expect(result == seqparRemoteError, "result ", result);
    const std::string text = seqparGetLastError(comm);
    expect(text.find("seqparAllGather: rank 2") == 0 && text.ends_with("rank 2 ended the communicator: no more data"),
           text);
  });
  CHECK(errors == "");
}

TEST_CASE("seqparStreamFail takes errors with a text only") {
  const Stream stream;
  for (const auto result : {seqparSuccess, seqparInProgress}) {
    CHECK(seqparStreamFail(stream.handle, result, "text") == seqparInvalidArgument);
    CHECK_THAT(lastError(), Catch::Contains("expected an error, 1 to 6"));
  }
  CHECK(seqparStreamFail(stream.handle, seqparSystemError, nullptr) == seqparInvalidArgument);
  CHECK(seqparStreamFail(nullptr, seqparSystemError, "text") == seqparInvalidArgument);
  CHECK(seqparStreamSynchronize(stream.handle) == seqparSuccess);
}

TEST_CASE("parts of an outer call use its name in errors and are refused where ranks differ in it") {
  const auto errors = onRanks(3, true, [](seqparComm_t comm, int rank) {
    const Stream stream;
    std::vector<float> whole(12, -1);
    const seqparCompared_t step{"step", seqparComparedNumber, rank == 1 ? 7 : 8, 0, nullptr};
    expectSuccess(seqparCommCallBegin("ownStep", &step, 1, comm, stream.handle), "seqparCommCallBegin", comm);
    // More parts on one rank than on the others: none is executed.
    for (int part = 0; part < (rank == 1 ? 3 : 1); ++part) {
      expectSuccess(gather(1, whole.data(), 4, comm, stream.handle), "seqparAllGather", comm);
    }
    expectSuccess(seqparCommCallEnd(), "seqparCommCallEnd");
    expect(seqparStreamSynchronize(stream.handle) == seqparInvalidUsage, "no difference was found");
    const std::string text = seqparGetLastError(comm);
    expect(text == "ownStep: the ranks disagree: rank 1 has step 7, rank 0 has 8", text);
    expect(whole[0] == -1, "a part was carried out");
    expect(seqparCommCallBegin("ownStep", &step, 1, comm, nullptr) == seqparInvalidUsage, "without a stream");
    const seqparCompared_t same{"step", seqparComparedNumber, 9, 0, nullptr};
    expectSuccess(seqparCommCallBegin("ownStep", &same, 1, comm, stream.handle), "seqparCommCallBegin", comm);
    expectSuccess(gather(static_cast<float>(rank), whole.data(), 4, comm, stream.handle), "seqparAllGather", comm);
    expectSuccess(seqparCommCallEnd(), "seqparCommCallEnd");
    expectSuccess(seqparStreamSynchronize(stream.handle), "seqparStreamSynchronize", comm);
    expect(whole[4] == 1, "gathered ", whole[4]);
  });
  CHECK(errors == "");
}

TEST_CASE("a wait that times out names the outer call and its part") {
  const auto wrong = withGrowingTimeout(1000, [](int timeoutMs) {
    seqparUniqueId id;
    REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
    std::barrier<> reported(2);
    return onThreads(2, [&](int rank) {
      seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
      config.timeoutMs = timeoutMs;
      seqparComm_t comm = nullptr;
      const auto made = seqparCommInitRankConfig(&comm, 2, id, rank, &config);
      seqparResult_t result = seqparSuccess;
      std::string text = seqparGetLastError(nullptr);
      if (made == seqparSuccess && rank == 0) {
        seqparCommCallBegin("ownStep", nullptr, 0, comm, nullptr);
        float whole[8];
        result = gather(1, whole, 4, comm, nullptr);
        text = seqparGetLastError(comm);
        seqparCommCallEnd();
      }
      reported.arrive_and_wait();
      seqparCommDestroy(comm);
      expectSuccess(made, "seqparCommInitRankConfig");
      if (rank == 1) return;
      expect(result == seqparRemoteError, "result ", result);
      expect(text.find("ownStep (seqparAllGather) #0: rank 0 waited ") != std::string::npos, text);
    });
  });
  CHECK(wrong == "");
}
