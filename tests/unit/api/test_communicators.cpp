#include <sched.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/ranks.h"
#include "common/timeouts.h"

using namespace seqpar::test;

namespace {

/// A ring shift that verifies the rank order of `comm`.
void checkRing(seqparComm_t comm) {
  int count = 0, rank = 0;
  expectSuccess(seqparCommCount(comm, &count), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank");
  const int previous = (rank + count - 1) % count;
  int received = -1;
  expectSuccess(
      seqparSendRecv(&rank, sizeof(rank), (rank + 1) % count, &received, sizeof(received), previous, comm, nullptr),
      "seqparSendRecv", comm);
  expect(received == previous, "rank ", rank, " of ", count, " received ", received);
}

}  // namespace

TEST_CASE("communicators of every size are made as threads, queried and destroyed") {
  const int size = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(size);
  const auto errors = onCommunicator(size, [&](seqparComm_t comm, int rank) {
    seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
    expectSuccess(seqparCommQuery(comm, &info), "seqparCommQuery", comm);
    expect(info.rank == rank && info.nranks == size, "rank ", info.rank, " of ", info.nranks);
    expect(info.device == SEQPAR_HOST_DEVICE && info.nodes == 1 && info.node == 0, "device ", info.device, ", nodes ",
           info.nodes);
    expect(info.directPeers + info.networkPeers == size - 1, info.directPeers, " + ", info.networkPeers, " peers");
    expect(info.contention >= 1, "contention ", info.contention);
    expect(info.sharing == 1, "sharing ", info.sharing);
    cpu_set_t allowed;
    expect(sched_getaffinity(0, sizeof(allowed), &allowed) == 0, "sched_getaffinity");
    const int share = std::max(1, CPU_COUNT(&allowed) / size);
    expect(info.threads == share && info.mostThreads == share, "threads ", info.threads, ", most ", info.mostThreads);
    if (size > 1) {
      expect(std::strlen(info.transport) > 0, "no transport named");
      expect(info.alphaUs > 0 && info.bandwidth > 0, "alpha ", info.alphaUs, " us, bandwidth ", info.bandwidth);
    }
    int device = 0;
    expectSuccess(seqparCommDevice(comm, &device), "seqparCommDevice");
    expect(device == SEQPAR_HOST_DEVICE, "device ", device);
    seqparResult_t state = seqparInternalError;
    expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError");
    expect(state == seqparSuccess, "state ", state);
    checkRing(comm);
  });
  CHECK(errors == "");
}

TEST_CASE("no rank leaves a barrier before all have entered") {
  const int size = GENERATE(1, 2, 5);
  CAPTURE(size);
  std::atomic<int> arrived{0};
  const auto errors = onCommunicator(size, [&](seqparComm_t comm, int rank) {
    for (int round = 1; round <= 20; ++round) {
      if (rank == round % size) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++arrived;
      expectSuccess(seqparCommBarrier(comm), "seqparCommBarrier", comm);
      expect(arrived >= round * size, arrived.load(), " ranks came to round ", round, " of ", size);
    }
  });
  CHECK(errors == "");
  CHECK(seqparCommBarrier(nullptr) == seqparInvalidArgument);
}

TEST_CASE("communicators made by a unique id") {
  const int size = GENERATE(1, 2, 4);
  CAPTURE(size);
  seqparUniqueId id;
  REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  const auto errors = onThreads(size, [&](int rank) {
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRank(&comm, size, id, rank), "seqparCommInitRank");
    checkRing(comm);
    expectSuccess(seqparCommFinalize(comm), "seqparCommFinalize", comm);
    char byte = 0;
    const auto late = seqparSendRecv(&byte, 1, (rank + 1) % size, &byte + 0, 0, (rank + 1) % size, comm, nullptr);
    expect(late != seqparSuccess, "a finalized communicator took work");
    seqparComm_t part = nullptr;
    expect(seqparCommBarrier(comm) == seqparInvalidUsage, "a barrier of a finalized communicator");
    expect(seqparCommSplit(comm, 0, 0, &part, nullptr) == seqparInvalidUsage, "a split of a finalized communicator");
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("a split orders by key, excludes ranks without a color, and outlives its parent") {
  const int size = 6;
  std::vector<seqparComm_t> comms(size);
  REQUIRE(seqparCommInitAll(comms.data(), size, nullptr) == seqparSuccess);
  const auto errors = onThreads(size, [&](int rank) {
    auto* const comm = comms[static_cast<size_t>(rank)];
    // Rank 5 stays out; the others go by parity, in descending order of rank.
    const int color = rank == 5 ? SEQPAR_SPLIT_NOCOLOR : rank % 2;
    seqparComm_t part = comm;
    expectSuccess(seqparCommSplit(comm, color, -rank, &part, nullptr), "seqparCommSplit", comm);
    seqparComm_t whole = nullptr;
    expectSuccess(seqparCommSplit(comm, 7, 0, &whole, nullptr), "seqparCommSplit", comm);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
    expect((part == nullptr) == (rank == 5), "part ", part);
    int wholeRank = -1;
    expectSuccess(seqparCommUserRank(whole, &wholeRank), "seqparCommUserRank");
    expect(wholeRank == rank, "equal keys must keep the order of ranks, got ", wholeRank);
    checkRing(whole);
    if (part != nullptr) {
      int count = 0, place = -1;
      expectSuccess(seqparCommCount(part, &count), "seqparCommCount");
      expectSuccess(seqparCommUserRank(part, &place), "seqparCommUserRank");
      expect(count == (color == 0 ? 3 : 2), "count ", count);
      expect(place == (color == 0 ? (4 - rank) / 2 : (3 - rank) / 2), "place ", place);
      checkRing(part);
      expectSuccess(seqparCommDestroy(part), "seqparCommDestroy");
    }
    expectSuccess(seqparCommDestroy(whole), "seqparCommDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("host ids make nodes, and settings that must agree are compared") {
  seqparUniqueId id;
  REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  const auto errors = onThreads(3, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.hostId = rank < 2 ? "first" : "second";
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, 3, id, rank, &config), "seqparCommInitRankConfig");
    seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
    expectSuccess(seqparCommQuery(comm, &info), "seqparCommQuery");
    expect(info.nodes == 2 && info.node == rank / 2, "node ", info.node, " of ", info.nodes);
    expect(info.networkPeers >= (rank < 2 ? 1 : 2), "network peers ", info.networkPeers);
    checkRing(comm);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  CHECK(errors == "");

  REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  const auto disagreement = onThreads(2, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = kNoTimeoutMs + rank;
    seqparComm_t comm = nullptr;
    const auto result = seqparCommInitRankConfig(&comm, 2, id, rank, &config);
    const std::string text = seqparGetLastError(nullptr);
    expect(result != seqparSuccess && comm == nullptr, "made in spite of different timeouts");
    expect(text.find("timeoutMs") != std::string::npos, text);
  });
  CHECK(disagreement == "");
}

TEST_CASE("many communicators work at the same time") {
  const auto errors = onCommunicator(2, [](seqparComm_t comm, int) {
    std::vector<seqparComm_t> copies(6);
    for (auto& copy : copies) expectSuccess(seqparCommSplit(comm, 0, 0, &copy, nullptr), "seqparCommSplit", comm);
    for (int round = 0; round < 20; ++round) {
      for (auto* copy : copies) checkRing(copy);
    }
    for (auto* copy : copies) expectSuccess(seqparCommDestroy(copy), "seqparCommDestroy");
  });
  CHECK(errors == "");
}
