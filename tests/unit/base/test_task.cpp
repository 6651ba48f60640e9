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

namespace {

void runFirst(TaskQueue& queue) {
  Task& task = queue.claim();
  task();
  task.reset();
  queue.release();
}

}  // namespace

TEST_CASE("a queue of tasks keeps their order when it wraps and grows") {
  TaskQueue queue;
  std::vector<int> ran;
  int pushed = 0;
  CHECK(queue.empty());
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < round % 7 + 2; ++i) queue.push([&ran, number = pushed++] { ran.push_back(number); });
    for (int i = 0; i < round % 5 + 1 && !queue.empty(); ++i) runFirst(queue);
  }
  while (!queue.empty()) runFirst(queue);
  REQUIRE(ran.size() == static_cast<size_t>(pushed));
  for (int i = 0; i < pushed; ++i) CHECK(ran[static_cast<size_t>(i)] == i);
}

TEST_CASE("a claimed task stays in place while others are pushed") {
  TaskQueue queue;
  const auto alive = std::make_shared<int>(0);
  queue.push([alive] { ++*alive; });
  for (int before = 0; before < 15; ++before) queue.push([alive] { *alive += 100; });
  Task& claimed = queue.claim();
  for (int more = 0; more < 100; ++more) queue.push([alive] { *alive += 100; });
  claimed();
  CHECK(*alive == 1);
  claimed.reset();
  queue.release();
  CHECK(alive.use_count() == 116);
  while (!queue.empty()) runFirst(queue);
  CHECK(*alive == 11501);
  CHECK(alive.use_count() == 1);
}
