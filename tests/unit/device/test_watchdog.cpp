// The thread of a communicator that a program does not destroy: it calls nothing once the process exits, because the
// CUDA runtime is destroyed then.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "device/watchdog.h"

namespace {

std::atomic<bool> destroyed{false};
std::atomic<int> polls{0};

[[noreturn]] void leaveWithoutDestroying() {
  // Runs after the functions that are registered later.
  if (std::atexit([] {
        destroyed = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        std::_Exit(0);
      }) != 0) {
    std::_Exit(2);
  }
  static const auto& health = *new seqpar::Health;
  static const auto* const watchdog = new seqpar::Watchdog(
      health,
      [] {
        ++polls;
        if (destroyed) std::_Exit(1);
      },
      [] {});
  (void)watchdog;
  while (polls == 0) std::this_thread::yield();
  std::exit(0);
}

TEST_CASE("a watchdog is idle once the process exits") {
  const pid_t child = fork();
  if (child == 0) leaveWithoutDestroying();
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
