// Splits that fail half-way, with ranks as threads.
#include <catch2/catch.hpp>

#include <array>
#include <stdexcept>

#include "api/split.h"
#include "common/ranks.h"
#include "seqpar/groups.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// The world still works: everyone hears from the rank before it.
void checkWorld(seqparComm_t world, int rank, int ranks) {
  int heard = -1;
  expectSuccess(seqparSendRecv(&rank, sizeof(rank), (rank + 1) % ranks, &heard, sizeof(heard),
                               (rank + ranks - 1) % ranks, world, nullptr),
                "seqparSendRecv", world);
  expect(heard == (rank + ranks - 1) % ranks, "rank ", rank, " heard ", heard);
}

}  // namespace

TEST_CASE("A failure while communicators are handed over ends all of them and leaves nulls") {
  constexpr int kRanks = 3;
  const auto errors = onCommunicator(kRanks, [](seqparComm_t world, int rank) {
    const auto parent = comms().find(world)->comm;
    std::array<std::weak_ptr<Communicator>, 3> seen;
    std::array<seqparComm_t, 3> handles{};
    int removed = 0;
    {
      CreatedEntries made;
      for (auto& each : seen) {
        auto entry = splitEntry(*parent, 0, rank, parent->config());
        each = entry->comm;
        made.add(std::move(entry));
      }
      // One rank fails at the second; the others, which know nothing of it, hand theirs over.
      const auto add = [&, calls = 0](std::shared_ptr<CommEntry> entry) mutable {
        if (rank == 1 && ++calls == 2) throw std::runtime_error("injected");
        return comms().add(std::move(entry));
      };
      const auto remove = [&](seqparComm_t handle) {
        ++removed;
        comms().remove(handle);
      };
      bool failed = false;
      try {
        made.handOver(handles, add, remove);
      } catch (const std::runtime_error&) {
        failed = true;
      }
      expect(failed == (rank == 1), "rank ", rank, failed ? " failed" : " did not fail");
    }
    if (rank == 1) {
      expect(removed == 1, removed, " handles were taken back");
      for (auto* handle : handles) expect(handle == nullptr, "a handle was left");
      for (const auto& each : seen) expect(each.expired(), "a communicator was left");
    } else {
      for (auto* handle : handles) expectSuccess(seqparCommAbort(handle), "seqparCommAbort");
    }
    checkWorld(world, rank, kRanks);
  });
  CHECK(errors == "");
}

TEST_CASE("If one group cannot be created, no rank gets any group and the parent stays usable") {
  constexpr int kRanks = 4;
  const auto errors = onCommunicator(kRanks, [](seqparComm_t world, int rank) {
    seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
    grid.extent[seqparDimRing] = 2;
    grid.extent[seqparDimData] = 2;
    // Groups of one rank, which always succeed; then pairs, one of them with ranks that disagree.
    const std::array<unsigned, 2> dims{SEQPAR_DIM(seqparDimPipeline), SEQPAR_DIM(seqparDimRing)};
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = rank == 0 ? 30000 : 60000;
    std::array<seqparComm_t, 2> comms{};
    expect(seqparGroupsCreate(world, &grid, dims.data(), 2, comms.data(), &config) != seqparSuccess,
           "groups were made on rank ", rank);
    for (auto* comm : comms) expect(comm == nullptr, "a communicator was left");
    checkWorld(world, rank, kRanks);
    seqparComm_t half = nullptr;
    expect(seqparCommSplit(world, rank % 2, rank, &half, &config) != seqparSuccess, "a split worked on rank ", rank);
    expect(half == nullptr, "a communicator was left");
    checkWorld(world, rank, kRanks);
    config.timeoutMs = 60000;
    expectSuccess(seqparCommSplit(world, rank % 2, rank, &half, &config), "seqparCommSplit", world);
    expectSuccess(seqparCommDestroy(half), "seqparCommDestroy");
  });
  CHECK(errors == "");
}
