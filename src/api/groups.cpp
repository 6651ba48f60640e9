// The grid functions and seqparGroupsCreate.
#include "seqpar/groups.h"

#include <algorithm>
#include <vector>

#include "api/boundary.h"
#include "api/split.h"
#include "base/versioned.h"
#include "comm/agreement.h"
#include "groups/grid.h"

using namespace seqpar;

namespace {

Grid readGrid(const char* call, const seqparGrid_t* grid) {
  return {call, readVersioned(call, "grid", grid, seqparGrid_t SEQPAR_GRID_INITIALIZER)};
}

void requireBelow(const char* call, const std::string& argument, int value, int bound) {
  if (value < 0 || value >= bound) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", value, ", expected 0 to ", bound - 1);
  }
}

void requireDims(const char* call, const std::string& argument, unsigned dims) {
  constexpr unsigned kAll = (1u << SEQPAR_DIMS) - 1;
  if (dims == 0 || dims > kAll) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", dims, ", expected a set of dimensions, 1 to ", kAll);
  }
}

/// Compares across ranks: the grid, and the groups with their order.
void compareRanks(const char* call, const seqparGrid_t& grid, std::span<const unsigned> dims, Communicator& world) {
  std::vector<NamedValue> values;
  for (const int extent : grid.extent) values.push_back({"extent", extent});
  for (const int dim : grid.order) values.push_back({"order", dim});
  values.push_back({"groups", static_cast<int64_t>(dims.size())});
  for (size_t i = 0; i < std::min<size_t>(dims.size(), 12); ++i) values.push_back({"dims", dims[i]});
  world.compareNow(call, values);
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparGridRanks(const seqparGrid_t* grid, int* ranks) {
  const char* call = "seqparGridRanks";
  return atBoundary(call, [&] {
    requirePointer(call, "ranks", ranks);
    *ranks = readGrid(call, grid).ranks();
  });
}

SEQPAR_API seqparResult_t seqparGridCoordinates(const seqparGrid_t* grid, int rank, int* coordinates) {
  const char* call = "seqparGridCoordinates";
  return atBoundary(call, [&] {
    const Grid all = readGrid(call, grid);
    requireBelow(call, "rank", rank, all.ranks());
    requirePointer(call, "coordinates", coordinates);
    const auto found = all.coordinates(rank);
    std::copy(found.begin(), found.end(), coordinates);
  });
}

SEQPAR_API seqparResult_t seqparGridRank(const seqparGrid_t* grid, const int* coordinates, int* rank) {
  const char* call = "seqparGridRank";
  return atBoundary(call, [&] {
    const Grid all = readGrid(call, grid);
    requirePointer(call, "coordinates", coordinates);
    requirePointer(call, "rank", rank);
    Coordinates given{};
    for (int dim = 0; dim < SEQPAR_DIMS; ++dim) {
      requireBelow(call, concat("coordinates[", dim, "]"), coordinates[dim], all.extent(dim));
      given[static_cast<size_t>(dim)] = coordinates[dim];
    }
    *rank = all.rank(given);
  });
}

SEQPAR_API seqparResult_t seqparGridGroup(const seqparGrid_t* grid, unsigned dims, int rank, int* members, int capacity,
                                          int* count, int* place) {
  const char* call = "seqparGridGroup";
  return atBoundary(call, [&] {
    const Grid all = readGrid(call, grid);
    requireDims(call, "dims", dims);
    requireBelow(call, "rank", rank, all.ranks());
    if (capacity < 0) fail(seqparInvalidArgument, call, ": capacity is ", capacity, ", expected 0 or more");
    if (capacity > 0) requirePointer(call, "members", members);
    requirePointer(call, "count", count);
    requirePointer(call, "place", place);
    const auto group = all.group(dims, rank);
    std::copy_n(group.begin(), std::min(group.size(), static_cast<size_t>(capacity)), members);
    *count = static_cast<int>(group.size());
    *place = static_cast<int>(std::find(group.begin(), group.end(), rank) - group.begin());
  });
}

SEQPAR_API seqparResult_t seqparGroupsCreate(seqparComm_t world, const seqparGrid_t* grid, const unsigned* dims,
                                             int groups, seqparComm_t* comms, const seqparConfig_t* config) {
  const char* call = "seqparGroupsCreate";
  return onComm(call, world, [&](Communicator& comm) {
    if (groups < 0) fail(seqparInvalidArgument, call, ": groups is ", groups, ", expected 0 or more");
    if (groups > 0) requirePointer(call, "comms", comms);
    std::fill_n(comms, groups, nullptr);
    if (groups > 0) requirePointer(call, "dims", dims);
    const auto given = readVersioned(call, "grid", grid, seqparGrid_t SEQPAR_GRID_INITIALIZER);
    const Grid all(call, given);
    if (all.ranks() != comm.size()) {
      fail(seqparInvalidArgument, call, ": grid is ", all.text(), ", expected the ", comm.size(), " of world");
    }
    for (int i = 0; i < groups; ++i) requireDims(call, concat("dims[", i, "]"), dims[i]);
    const CommConfig resolved = resolveConfig(call, config, comm.config());
    compareRanks(call, given, {dims, static_cast<size_t>(groups)}, comm);
    CreatedEntries made;
    for (int i = 0; i < groups; ++i) {
      made.add(splitEntry(comm, all.color(dims[i], comm.rank()), comm.rank(), resolved));
    }
    made.handOver(
        std::span(comms, static_cast<size_t>(groups)),
        [](std::shared_ptr<CommEntry> entry) { return seqpar::comms().add(std::move(entry)); },
        [](seqparComm_t handle) { seqpar::comms().remove(handle); });
  });
}

}  // extern "C"
