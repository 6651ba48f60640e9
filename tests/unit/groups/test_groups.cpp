// Communicators of a grid's groups, with ranks as threads.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "common/ranks.h"
#include "seqpar/groups.h"

using namespace seqpar::test;

namespace {

constexpr unsigned kSequence = SEQPAR_DIM(seqparDimUlysses) | SEQPAR_DIM(seqparDimRing);

/// Checks that `comm` has exactly the ranks of the grid's group, in order: all ranks gather their world ranks.
void checkMembers(seqparComm_t comm, const seqparGrid_t& grid, unsigned dims, int worldRank) {
  std::vector<int> members(64, -1);
  int count = 0;
  int place = -1;
  expectSuccess(seqparGridGroup(&grid, dims, worldRank, members.data(), 64, &count, &place), "seqparGridGroup");
  int rank = -1;
  int ranks = -1;
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank", comm);
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount", comm);
  expect(rank == place && ranks == count, "rank ", worldRank, " is ", rank, " of ", ranks, ", expected ", place, " of ",
         count);
  for (int step = 0; step < ranks; ++step) {
    const int from = (rank + ranks - step) % ranks;
    int heard = -1;
    expectSuccess(
        seqparSendRecv(&worldRank, sizeof(int), (rank + step) % ranks, &heard, sizeof(int), from, comm, nullptr),
        "seqparSendRecv", comm);
    expect(heard == members[static_cast<size_t>(from)], "member ", from, " is ", heard);
  }
}

}  // namespace

TEST_CASE("A world of 8 splits into the groups of its grid") {
  seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
  grid.extent[seqparDimTensor] = 2;
  grid.extent[seqparDimUlysses] = 2;
  grid.extent[seqparDimRing] = 2;
  if (GENERATE(false, true)) std::reverse(grid.order, grid.order + SEQPAR_DIMS);
  const auto errors = onCommunicator(8, [&](seqparComm_t world, int rank) {
    const std::array<unsigned, 4> dims{SEQPAR_DIM(seqparDimTensor), SEQPAR_DIM(seqparDimRing), kSequence,
                                       SEQPAR_DIM(seqparDimPipeline)};
    std::array<seqparComm_t, 4> comms{};
    expectSuccess(seqparGroupsCreate(world, &grid, dims.data(), 4, comms.data(), nullptr), "seqparGroupsCreate", world);
    for (size_t i = 0; i < dims.size(); ++i) {
      checkMembers(comms[i], grid, dims[i], rank);
      expectSuccess(seqparCommDestroy(comms[i]), "seqparCommDestroy");
    }
  });
  CHECK(errors == "");
}

TEST_CASE("A grid of another size than the communicator is refused, and the communicator stays usable") {
  const auto errors = onCommunicator(3, [](seqparComm_t world, int rank) {
    seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
    grid.extent[seqparDimRing] = 2;
    unsigned dims = SEQPAR_DIM(seqparDimRing);
    auto* comm = reinterpret_cast<seqparComm_t>(&grid);
    const auto refused = [&](seqparResult_t result, const std::string& words) {
      expect(result == seqparInvalidArgument, words, ": got ", seqparGetErrorString(result));
      const std::string text = seqparGetLastError(world);
      expect(text.find(words) != std::string::npos, "expected '", words, "' in '", text, "'");
    };
    refused(seqparGroupsCreate(world, &grid, &dims, 1, &comm, nullptr),
            "grid is tensor 1 x ulysses 1 x ring 2 x data 1 x pipeline 1 = 2 ranks, expected the 3 of world");
    expect(comm == nullptr, "comms[0] is not NULL after an error");
    grid.extent[seqparDimRing] = 3;
    dims = 0;
    refused(seqparGroupsCreate(world, &grid, &dims, 1, &comm, nullptr), "dims[0] is 0");
    dims = SEQPAR_DIM(seqparDimRing);
    refused(seqparGroupsCreate(world, &grid, nullptr, 1, &comm, nullptr), "dims is NULL");
    refused(seqparGroupsCreate(world, &grid, &dims, 1, nullptr, nullptr), "comms is NULL");
    refused(seqparGroupsCreate(world, &grid, &dims, -1, &comm, nullptr), "groups is -1");
    refused(seqparGroupsCreate(world, nullptr, &dims, 1, &comm, nullptr), "grid is NULL");
    expectSuccess(seqparGroupsCreate(world, &grid, &dims, 1, &comm, nullptr), "seqparGroupsCreate", world);
    checkMembers(comm, grid, dims, rank);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("With argument checks, ranks that disagree about the grid get an error") {
  setenv("SEQPAR_CHECK", "1", 1);
  const auto errors = onCommunicator(2, [](seqparComm_t world, int rank) {
    seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
    grid.extent[rank == 0 ? seqparDimRing : seqparDimData] = 2;
    const unsigned dims = SEQPAR_DIM(seqparDimRing);
    seqparComm_t comm = nullptr;
    expect(seqparGroupsCreate(world, &grid, &dims, 1, &comm, nullptr) == seqparInvalidUsage, "it was not noticed");
    const std::string text = seqparGetLastError(world);
    expect(text.find("rank 1 has extent 1, rank 0 has 2") != std::string::npos, "the error is '", text, "'");
    expect(comm == nullptr, "a communicator was made");
  });
  unsetenv("SEQPAR_CHECK");
  CHECK(errors == "");
}
