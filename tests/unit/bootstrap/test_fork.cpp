// The state that a process passes to its children, and its exit.
#include <fcntl.h>

#include <catch2/catch.hpp>

#include "bootstrap/descriptor.h"
#include "processes.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;
using std::chrono::milliseconds;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SEQPAR_TEST_THREAD_SANITIZER
#endif
#endif

#ifdef SEQPAR_TEST_THREAD_SANITIZER
// By default, the sanitizer kills a child of a process with threads that creates a thread.
extern "C" const char* __tsan_default_options() {
  return "die_after_fork=0:report_thread_leaks=0";
}
#endif

namespace {

bool isForkedChild = false;

constexpr int kReported = 100;  // more than are ever ready

}  // namespace

// Called by the leak sanitizer at exit. In a forked child, memory that only a thread's stack refers to counts as
// leaked: the parent's threads, or a thread of the child that cannot be stopped.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return isForkedChild ? 1 : 0;
}

TEST_CASE("a surviving child does not hide its parent's exit") {
  Processes processes(2, [](int number, Page& page) {
    auto rendezvous = joinRendezvous(page.id, number, 2, withTimeout(kNoTimeoutMs));
    Rank rank(*rendezvous, withTimeout(kNoTimeoutMs));
    rendezvous.reset();
    if (number == 1 && fork() == 0) {
      alarm(600);  // in case the test ends without waking this child
      waitUntil([&] { return page.ready >= kReported; });
      _exit(0);
    }
    ++page.ready;
    waitUntil([&] { return !rank.health.ok(); });
    throw std::runtime_error(rank.health.text());
  });
  processes.start(makeUniqueId(""));
  REQUIRE(processes.allReady(2));
  processes.signal(1, SIGKILL);
  CHECK_THAT(processes.reportOf(0), Contains("rank 1 (") && Contains("the process is gone"));
  processes.page().ready = kReported;
}

TEST_CASE("a process with an unused id exits, and so does its child") {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    isForkedChild = true;
    alarm(600);  // should it hang; its child then has no parent to hang
    makeUniqueId("");
    // The server's thread becomes idle: if it held a sanitizer's lock, the lock would stay locked in the child.
    std::this_thread::sleep_for(milliseconds(200));
    const pid_t child = fork();
    if (child == 0) exit(17);
    int status = 0;
    waitpid(child, &status, 0);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 17);
}

TEST_CASE("descriptors are closed on exec") {
  makeUniqueId("");
  const auto errors = onControls(2, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    if (number == 0) {
      int seen = 0;
      for (int number_ = 3; number_ < 256; ++number_) {
        const int flags = fcntl(number_, F_GETFD);
        if (flags < 0) continue;
        std::array<char, 64> target{};
        const auto path = concat("/proc/self/fd/", number_);
        if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) continue;
        const std::string what = target.data();
        if (what.find("socket:") == std::string::npos && what.find("eventfd") == std::string::npos) continue;
        ++seen;
        expect((flags & FD_CLOEXEC) != 0, "descriptor ", number_, " (", what, ") stays open on exec");
      }
      expect(seen >= 4, "saw only ", seen, " descriptors");
    }
    rank.control->leave();
  });
  CHECK(errors == "");
}
