// Kernel parameters: division by multiplication, and the division of work.
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "kernels/scan/threads.h"
#include "scan/peers/task.h"
#include "unit/seed.h"

using namespace seqpar;

TEST_CASE("Divider divides and takes remainders") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  constexpr std::uint32_t kMost = ScanTask::kMostElements;
  for (int i = 0; i < 200000; ++i) {
    const std::uint32_t divisor = std::max(1U, static_cast<std::uint32_t>(random() & kMost) >> (random() % 31));
    const std::uint32_t number = static_cast<std::uint32_t>(random() & kMost) >> (random() % 31);
    const Divider divider(divisor);
    for (const std::uint32_t each : {number, number / divisor * divisor, kMost, 0U, divisor, divisor - 1}) {
      REQUIRE(divider.quotient(each) == each / divisor);
    }
  }
}

TEST_CASE("Parts follow each other and none is larger than need be") {
  for (const std::uint32_t elements : {1U, 127U, 128U, 129U, 1000U, 4097U, ScanTask::kMostElements}) {
    for (const int channels : {1, 2, 3, 7, 32, 132}) {
      for (const std::uint32_t vec : {4U, 8U}) {
        CAPTURE(elements, channels, vec);
        ScanTask task;
        task.elements = elements;
        task.cut(channels);
        REQUIRE(task.channels >= 1);
        REQUIRE(task.channels <= channels);
        std::uint32_t at = 0;
        for (int channel = 0; channel < task.channels; ++channel) {
          const VecRange part = task.part(channel, vec);
          REQUIRE(part.begin == at);
          REQUIRE(part.begin * vec % 128 == 0);
          REQUIRE(part.size() > 0);
          REQUIRE(part.size() <= (elements / static_cast<std::uint32_t>(channels) + 128) / vec + 1);
          at = part.end;
        }
        REQUIRE(at == (elements + vec - 1) / vec);
      }
    }
  }
}

TEST_CASE("Many heads become several tasks, each with flags and pointers") {
  PeerView view;
  view.size = 2;
  view.channels = 4;
  ScanProblem problem;
  problem.op = seqparScanDiag;
  problem.heads = 2 * ScanTask::kMostHeads + 3;
  problem.dk = 2;
  problem.dv = 3;
  problem.headFlags.assign(problem.heads, 0);
  problem.headFlags[ScanTask::kMostHeads + 40] = SEQPAR_SCAN_CUT;
  problem.headFlags[ScanTask::kMostHeads + 41] = SEQPAR_SCAN_RESET_IN;
  std::vector<float> state(problem.heads * 6), transition(problem.heads * 2);
  problem.state = state.data();
  problem.transition = transition.data();
  problem.total = state.data();
  const int order[] = {1, 0};
  const auto tasks = makeScanTasks(view, problem, order);
  REQUIRE(tasks.size() == 3);
  CHECK(tasks[0].elements == ScanTask::kMostHeads * 6);
  CHECK(tasks[2].elements == 3 * 6);
  CHECK(tasks[1].state == reinterpret_cast<const std::byte*>(state.data() + ScanTask::kMostHeads * 6));
  CHECK(tasks[1].transition == transition.data() + ScanTask::kMostHeads * 2);
  CHECK_FALSE(tasks[0].flags);
  CHECK(tasks[1].flags);
  CHECK(tasks[1].forgets[1] == 0x300);
  CHECK(tasks[1].resets[1] == 0x200);
  CHECK(tasks[0].position == 1);
  CHECK(tasks[0].peerAt[0] == 1);
  CHECK(tasks[0].positionOf[1] == 0);
}

TEST_CASE("A head count beyond 32 bits is refused") {
  PeerView view;
  ScanProblem problem;
  problem.heads = 1;
  problem.dk = size_t{1} << 20;
  problem.dv = size_t{1} << 11;
  problem.headFlags.assign(1, 0);
  const int order[] = {0};
  CHECK_THROWS_AS(makeScanTasks(view, problem, order), Error);
}

TEST_CASE("Threads of a scan fit the GPU, and their messages in flight fit a ring") {
  for (const std::uint32_t elements : {1U, 4096U, 1U << 20, ScanTask::kMostElements}) {
    for (const int channels : {1, 2, 11, 16, 64, 128}) {
      for (const std::uint32_t packets : {1U, 2U, 4U}) {
        CAPTURE(elements, channels, packets);
        ScanTask task;
        task.elements = elements;
        task.cut(channels);
        const std::uint32_t threads = scanThreads(task, packets);
        CHECK(threads % 32 == 0);
        CHECK(threads <= kMostThreads);
        CHECK(threads * packets <= kSurePackets);
        CHECK((threads == kLeastThreads || threads * static_cast<std::uint32_t>(task.channels) <= kScanThreads));
      }
    }
  }
}
