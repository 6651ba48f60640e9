// Parts of a window of the delta rule on a GPU.
#include "attn/linear/device/delta_parts.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

/// A window with states of `columns` columns.
delta::Task taskOf(int heads, int chunks, int width, int columns = 128) {
  static float states = 0;
  delta::Task task;
  task.heads = task.keyHeads = heads;
  task.dk = 128;
  task.dv = columns;
  task.width = width;
  task.count = chunks;
  task.states = &states;
  task.writesOut = true;
  return task;
}

TEST_CASE("parts of a window of the delta rule have all of its chunks") {
  for (const int width : {0, 1, 128}) {
    for (const int heads : {1, 2, 7, 8, 16, 20, 32, 64, 200}) {
      for (const int chunks : {1, 15, 16, 31, 32, 33, 128, 264, 8448}) {
        for (const int least : {1, 16}) {
          CAPTURE(width, heads, chunks, least);
          const auto parts = linear::partsOf(taskOf(heads, chunks, width), least);
          CHECK(std::accumulate(parts.begin(), parts.end(), 0) == chunks);
          CHECK(*std::min_element(parts.begin(), parts.end()) > 0);
          if (parts.size() > 1) CHECK(parts.front() >= least);
        }
      }
    }
  }
}

TEST_CASE("a window of the delta rule is in parts if its chains leave enough SMs idle") {
  using Parts = std::vector<int>;
  CHECK(linear::partsOf(taskOf(16, 128, 1), 16) == Parts{32, 32, 32, 32});
  CHECK(linear::partsOf(taskOf(16, 31, 1), 16) == Parts{31});
  CHECK(linear::partsOf(taskOf(32, 128, 1), 16) == Parts{104, 24});
  CHECK(linear::partsOf(taskOf(32, 127, 1), 16) == Parts{127});
  CHECK(linear::partsOf(taskOf(33, 128, 1), 16) == Parts{128});
  CHECK(linear::partsOf(taskOf(2, 8, 128), 1) == Parts{8});
  CHECK(linear::partsOf(taskOf(4, 128, 128), 16) == Parts{128});
  CHECK(linear::partsOf(taskOf(8, 128, 128), 16) == Parts{64, 64});
  CHECK(linear::partsOf(taskOf(16, 128, 128), 16) == Parts{82, 46});
  CHECK(linear::partsOf(taskOf(32, 128, 128), 16) == Parts{107, 21});
  CHECK(linear::partsOf(taskOf(64, 128, 128), 16) == Parts{128});
  auto rows = taskOf(16, 128, 1);
  rows.readsRows = true;
  CHECK(linear::partsOf(rows, 16) == Parts{128});
  auto states = taskOf(16, 128, 128);
  states.writesOut = false;
  CHECK(linear::partsOf(states, 16) == Parts{128});
}

}  // namespace
