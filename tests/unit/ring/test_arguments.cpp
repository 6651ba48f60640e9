// Rings and shifts that are refused, and calls in the wrong order.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "common/ranks.h"
#include "seqpar/ring.h"

using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

/// A valid ring on one of three ranks, used only on this rank, and a way to invalidate one field at a time.
struct Fixture {
  Fixture() {
    REQUIRE(seqparCommInitAll(comms.data(), 3, nullptr) == seqparSuccess);
    params.tensors = 2;
    params.bytes = bytes.data();
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;
  ~Fixture() {
    onThreads(3, [&](int rank) { seqparCommDestroy(comms[static_cast<size_t>(rank)]); });
  }

  void refused(const std::vector<std::string>& words, seqparResult_t expected = seqparInvalidArgument) {
    seqparRing_t ring = nullptr;
    CHECK(seqparRingCreate(&ring, &params, comms[1]) == expected);
    CHECK(ring == nullptr);
    const std::string text = seqparGetLastError(comms[1]);
    CHECK_THAT(text, Contains("seqparRingCreate"));
    for (const auto& word : words) CHECK_THAT(text, Contains(word));
  }

  std::array<seqparComm_t, 3> comms{};
  std::array<size_t, 2> bytes{100, 200};
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
};

/// A ring of one rank, of a tensor of 10 bytes.
std::pair<seqparComm_t, seqparRing_t> ringOfOne() {
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  const size_t bytes = 10;
  params.tensors = 1;
  params.bytes = &bytes;
  params.steps = 1;
  seqparRing_t ring = nullptr;
  REQUIRE(seqparRingCreate(&ring, &params, comm) == seqparSuccess);
  return {comm, ring};
}

}  // namespace

TEST_CASE("parameters of a ring") {
  Fixture f;
  std::array<int, 3> ranks{2, 1, 0};
  SECTION("magic") {
    f.params.magic = 1;
    f.refused({"params", "magic", "INITIALIZER"});
  }
  SECTION("direction") {
    f.params.direction = 2;
    f.refused({"direction is 2"});
  }
  SECTION("an invalid rank") {
    ranks[0] = 3;
    f.params.ranks = ranks.data();
    f.params.nranks = 3;
    f.refused({"ranks[0] is 3", "0 to 2"});
  }
  SECTION("a rank twice") {
    ranks[2] = 2;
    f.params.ranks = ranks.data();
    f.params.nranks = 3;
    f.refused({"ranks[2] is 2", "once"});
  }
  SECTION("a list without this rank") {
    ranks = {2, 0, 0};
    f.params.ranks = ranks.data();
    f.params.nranks = 2;
    f.refused({"this rank"});
  }
  SECTION("no ranks") {
    f.params.ranks = ranks.data();
    f.refused({"nranks is 0"});
  }
  SECTION("inner") {
    f.params.inner = 2;
    f.refused({"inner is 2", "divisor of 3"});
  }
  SECTION("steps") {
    f.params.steps = 4;
    f.refused({"steps is 4", "0 to 3"});
  }
  SECTION("tensors") {
    f.params.tensors = 65;
    f.refused({"tensors is 65", "1 to 64"});
  }
  SECTION("bytes") {
    f.params.bytes = nullptr;
    f.refused({"bytes is NULL"});
  }
  SECTION("a size") {
    f.bytes[1] = SIZE_MAX;
    f.refused({"bytes[1]"});
  }
  SECTION("flags") {
    f.params.keepHome = 2;
    f.refused({"keepHome is 2"});
  }
  SECTION("buffers that overlap") {
    std::vector<char> memory(1000);
    const std::array<void*, 2> home{memory.data(), memory.data() + 99};
    f.params.home = home.data();
    f.refused({"home[0]", "overlaps", "home[1]"});
  }
  SECTION("scratch that overlaps home") {
    std::vector<char> memory(1000);
    const std::array<void*, 2> home{memory.data(), memory.data() + 100};
    const std::array<void*, 2> scratch{memory.data() + 300, memory.data() + 299};
    f.params.home = home.data();
    f.params.scratch = scratch.data();
    f.refused({"overlaps", "scratch[1]"});
  }
  SECTION("a buffer that is missing") {
    const std::array<void*, 2> home{nullptr, nullptr};
    f.params.home = home.data();
    f.refused({"home[0] is NULL"});
  }
}

TEST_CASE("how many scratch sets a ring needs") {
  Fixture f;
  const auto sets = [&](int inner, int keepHome) {
    int count = -1;
    f.params.inner = inner;
    f.params.keepHome = keepHome;
    CHECK(seqparRingScratch(&f.params, f.comms[0], &count) == seqparSuccess);
    return count;
  };
  CHECK(sets(0, 0) == 1);
  CHECK(sets(0, 1) == 2);
  CHECK(sets(1, 0) == 1);
  CHECK(seqparRingScratch(&f.params, f.comms[0], nullptr) == seqparInvalidArgument);
}

TEST_CASE("calls on a ring in the wrong order") {
  auto [comm, ring] = ringOfOne();

  CHECK(seqparRingWait(ring, nullptr) == seqparInvalidUsage);
  CHECK_THAT(seqparGetLastError(comm), Contains("seqparRingWait") && Contains("seqparRingPost first"));
  CHECK(seqparRingPost(ring, nullptr) == seqparSuccess);
  CHECK(seqparRingPost(ring, nullptr) == seqparInvalidUsage);
  CHECK_THAT(seqparGetLastError(comm), Contains("seqparRingWait first"));
  CHECK(seqparRingReset(ring) == seqparInvalidUsage);
  const void* own = &ring;
  CHECK(seqparRingResetFrom(ring, &own) == seqparInvalidUsage);
  CHECK(seqparRingWait(ring, nullptr) == seqparSuccess);
  CHECK(seqparRingPost(ring, nullptr) == seqparInvalidUsage);
  CHECK_THAT(seqparGetLastError(comm), Contains("seqparRingReset first"));
  CHECK(seqparRingReset(ring) == seqparSuccess);
  CHECK(seqparRingResetFrom(ring, nullptr) == seqparInvalidArgument);
  own = nullptr;
  CHECK(seqparRingResetFrom(ring, &own) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(comm), Contains("tensors[0]"));
  CHECK(seqparRingPost(ring, &ring) == seqparInvalidArgument);
  CHECK(seqparRingPost(ring, nullptr) == seqparSuccess);  // a refused post has started nothing
  CHECK(seqparRingWait(ring, nullptr) == seqparSuccess);

  void* pointer = nullptr;
  CHECK(seqparRingCurrent(ring, 1, &pointer, nullptr) == seqparInvalidArgument);
  CHECK(seqparRingCurrent(ring, -1, &pointer, nullptr) == seqparInvalidArgument);
  seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
  REQUIRE(seqparRingQuery(ring, &info) == seqparSuccess);
  CHECK(info.step == 1);
  CHECK(info.source == 0);
  CHECK(std::strlen(info.engine) > 0);
  info.magic = 0;
  CHECK(seqparRingQuery(ring, &info) == seqparInvalidArgument);

  CHECK(seqparRingDestroy(ring) == seqparSuccess);
  CHECK(seqparRingDestroy(ring) == seqparInvalidArgument);
  CHECK(seqparRingDestroy(nullptr) == seqparSuccess);
  CHECK(seqparRingPost(ring, nullptr) == seqparInvalidArgument);
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
}

TEST_CASE("a ring outlives its communicator without harm") {
  auto [comm, ring] = ringOfOne();
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
  CHECK(seqparRingPost(ring, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("comm is"));
  CHECK(seqparRingDestroy(ring) == seqparSuccess);
}

TEST_CASE("a rank that aborts ends the others' transfers") {
  std::array<seqparComm_t, 2> comms{};
  REQUIRE(seqparCommInitAll(comms.data(), 2, nullptr) == seqparSuccess);
  const auto errors = onThreads(2, [&](int rank) {
    auto* const comm = comms[static_cast<size_t>(rank)];
    if (rank == 1) {
      seqparCommAbort(comm);
      return;
    }
    seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
    const size_t bytes = 100000;
    params.tensors = 1;
    params.bytes = &bytes;
    seqparRing_t ring = nullptr;
    // The abort's notification may arrive before any of these calls. With SEQPAR_CHECK the first call waits for rank 1
    // too.
    auto result = seqparRingCreate(&ring, &params, comm);
    if (result == seqparSuccess) result = seqparRingPost(ring, nullptr);
    if (result == seqparSuccess) result = seqparRingWait(ring, nullptr);
    expect(result == seqparRemoteError, "expected RemoteError, got ", seqparGetErrorString(result));
    if (ring != nullptr) expectSuccess(seqparRingDestroy(ring), "seqparRingDestroy");
    seqparCommDestroy(comm);
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("parameters of a shift") {
  Fixture f;
  std::vector<char> memory(1000);
  std::array<const void*, 2> from{memory.data(), memory.data() + 100};
  std::array<void*, 2> into{memory.data() + 300, memory.data() + 400};
  seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
  params.sendTensors = params.receiveTensors = 2;
  params.sendBuffers = from.data();
  params.receiveBuffers = into.data();
  params.sendBytes = params.receiveBytes = f.bytes.data();
  params.sendPeer = params.receivePeer = 1;
  const auto refused = [&](const std::vector<std::string>& words) {
    CHECK(seqparShift(&params, f.comms[1], nullptr) == seqparInvalidArgument);
    for (const auto& word : words) CHECK_THAT(seqparGetLastError(f.comms[1]), Contains(word));
  };
  SECTION("to oneself") {
    memory[0] = 7;
    memory[299] = 8;
    CHECK(seqparShift(&params, f.comms[1], nullptr) == seqparSuccess);
    CHECK(memory[300] == 7);
    CHECK(memory[599] == 8);
  }
  SECTION("peers") {
    params.sendPeer = 3;
    refused({"sendPeer is 3"});
  }
  SECTION("one peer oneself") {
    params.sendPeer = 0;
    refused({"both or neither"});
  }
  SECTION("lengths to oneself") {
    const std::array<size_t, 2> other{100, 199};
    params.receiveBytes = other.data();
    refused({"same lengths"});
  }
  SECTION("numbers") {
    params.receiveTensors = -1;
    refused({"receiveTensors is -1"});
  }
  SECTION("NULL") {
    from[1] = nullptr;
    refused({"sendBuffers[1] is NULL"});
  }
  SECTION("overlap") {
    into[0] = memory.data() + 299;
    refused({"sendBuffers[1]", "receiveBuffers[0]", "overlaps"});
  }
  SECTION("no member") {
    params.sendPeer = params.receivePeer = SEQPAR_NO_PEER;
    CHECK(seqparShift(&params, f.comms[1], nullptr) == seqparSuccess);
  }
}
