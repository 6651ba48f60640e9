// seqparCommNextCall, seqparCommRefuseCall, seqparCommFail: errors of programs reach the ranks that wait.
#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"
#include "common/ranks.h"

using namespace seqpar::test;

namespace {

std::string onRanks(int nranks, const std::function<void(seqparComm_t, int)>& body) {
  seqparUniqueId id;
  if (seqparGetUniqueId(&id) != seqparSuccess) return seqparGetLastError(nullptr);
  return onThreads(nranks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = 0;  // a wait that nothing ends hangs the test
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, nranks, id, rank, &config), "seqparCommInitRankConfig");
    body(comm, rank);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
}

/// A shift around the ring as one call of a program.
seqparResult_t shift(seqparComm_t comm, int rank, int nranks) {
  expectSuccess(seqparCommNextCall(comm), "seqparCommNextCall", comm);
  const int sent = rank;
  int received = -1;
  const auto result = seqparSendRecv(&sent, sizeof sent, (rank + 1) % nranks, &received, sizeof received,
                                     (rank + nranks - 1) % nranks, comm, nullptr);
  expect(result != seqparSuccess || received == (rank + nranks - 1) % nranks, "received ", received);
  return result;
}

void expectLost(seqparResult_t result, const std::string& part) {
  const std::string text = seqparGetLastError(nullptr);
  expect(result == seqparRemoteError, "result ", result, ": ", text);
  expect(text.find(part) != std::string::npos, text);
}

}  // namespace

TEST_CASE("a refusal on one rank ends the call of the others, with its words and rank") {
  const int refusing = GENERATE(0, 2);
  CAPTURE(refusing);
  const auto errors = onRanks(3, [&](seqparComm_t comm, int rank) {
    for (int i = 0; i < 2; ++i) expectSuccess(shift(comm, rank, 3), "seqparSendRecv", comm);
    if (rank == refusing) {
      expectSuccess(seqparCommRefuseCall(comm, "ValueError: got a mask"), "seqparCommRefuseCall", comm);
      seqparResult_t state = seqparSuccess;
      while (state == seqparSuccess) expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError");
      expectLost(shift(comm, rank, 3), "refused a call: ValueError: got a mask");
    } else {
      // The neighbors may have finished their exchange before the refusal: then the next call returns the error.
      auto result = shift(comm, rank, 3);
      if (result == seqparSuccess) result = shift(comm, rank, 3);
      expectLost(result, "ValueError: got a mask");
      expectLost(result, seqpar::concat("rank ", refusing, " ("));
    }
  });
  CHECK(errors == "");
}

TEST_CASE("calls refused on all ranks leave the communicator usable") {
  const auto errors = onRanks(3, [](seqparComm_t comm, int rank) {
    for (int i = 0; i < 200; ++i) {
      expectSuccess(shift(comm, rank, 3), "seqparSendRecv", comm);
      expectSuccess(seqparCommRefuseCall(comm, "as all do"), "seqparCommRefuseCall", comm);
    }
  });
  CHECK(errors == "");
}

TEST_CASE("seqparCommFail ends the communicator on all ranks and keeps the handles") {
  const auto errors = onRanks(2, [](seqparComm_t comm, int rank) {
    if (rank == 1) {
      expectSuccess(seqparCommFail(comm, "a kernel failed"), "seqparCommFail", comm);
      expectSuccess(seqparCommFail(comm, "again"), "seqparCommFail", comm);
    }
    expectLost(shift(comm, rank, 2), "rank 1 ended the communicator: a kernel failed");
    if (rank == 1) expectLost(seqparCommRefuseCall(comm, "too late"), "a kernel failed");
  });
  CHECK(errors == "");
}

TEST_CASE("the refusal notice checks its arguments and is a no-op on one rank") {
  const auto errors = onRanks(1, [](seqparComm_t comm, int) {
    expect(seqparCommRefuseCall(comm, nullptr) == seqparInvalidArgument, "why NULL");
    expect(seqparCommFail(comm, nullptr) == seqparInvalidArgument, "why NULL");
    expect(seqparCommNextCall(nullptr) == seqparInvalidArgument, "comm NULL");
    expect(seqparCommRefuseCall(nullptr, "x") == seqparInvalidArgument, "comm NULL");
    expectSuccess(seqparCommRefuseCall(comm, "alone"), "seqparCommRefuseCall", comm);
    expectSuccess(shift(comm, 0, 1), "seqparSendRecv", comm);
    expectSuccess(seqparCommFinalize(comm), "seqparCommFinalize", comm);
    expect(seqparCommRefuseCall(comm, "late") == seqparInvalidUsage, "finalized");
  });
  CHECK(errors == "");
}
