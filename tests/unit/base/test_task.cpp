// Tasks and their queue.
#include "base/task.h"

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

using namespace seqpar;

TEST_CASE("a task runs small and large work, and destroys it once") {
  const auto alive = std::make_shared<int>(0);
  {
    Task small([alive] { ++*alive; });
    Task large([alive, more = std::array<long, 100>{}] { *alive += 10 + static_cast<int>(more[99]); });
    CHECK(alive.use_count() == 3);
    Task moved(std::move(small));
    moved();
    Task assigned;
    assigned = std::move(large);
    assigned();
    assigned();
    CHECK(*alive == 21);
    CHECK(alive.use_count() == 3);
    assigned.reset();
    CHECK(alive.use_count() == 2);
    assigned = std::move(moved);
    CHECK(alive.use_count() == 2);
    assigned();
    CHECK(*alive == 22);
  }
  CHECK(alive.use_count() == 1);
}

TEST_CASE("a queue of tasks keeps their order when it wraps and grows") {
  TaskQueue queue;
  std::vector<int> ran;
  int pushed = 0;
  CHECK(queue.empty());
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < round % 7 + 2; ++i) queue.push([&ran, number = pushed++] { ran.push_back(number); });
    for (int i = 0; i < round % 5 + 1 && !queue.empty(); ++i) queue.pop()();
  }
  while (!queue.empty()) queue.pop()();
  REQUIRE(ran.size() == static_cast<size_t>(pushed));
  for (int i = 0; i < pushed; ++i) CHECK(ran[static_cast<size_t>(i)] == i);
}
