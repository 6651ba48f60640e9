// What a process leaves to its children, and at its end.
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
// By default the sanitizer ends every child of a process with threads that starts one of its own.
extern "C" const char* __tsan_default_options() {
  return "die_after_fork=0:report_thread_leaks=0";
}
#endif

namespace {

bool isForkedChild = false;

}  // namespace

// Asked by the leak sanitizer at exit. In a forked child what only a thread's stack points to, the parent's or its own
// that it cannot stop, counts as lost.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return isForkedChild ? 1 : 0;
}

TEST_CASE("a child that lives on does not hide its parent's death") {
  Processes processes(2, [](int number, Page& page) {
    auto meeting = joinRendezvous(page.id, number, 2, withTimeout(30000));
    Rank rank(*meeting, withTimeout(60000));
    meeting.reset();
    if (number == 1 && fork() == 0) {
      std::this_thread::sleep_for(milliseconds(5000));
      _exit(0);
    }
    ++page.ready;
    expect(within(milliseconds(30000), [&] { return !rank.health.ok(); }), "no failure was noticed");
    throw std::runtime_error(rank.health.text());
  });
  processes.start(makeUniqueId(""));
  REQUIRE(processes.allReady(2));
  const auto at = std::chrono::steady_clock::now();
  processes.signal(1, SIGKILL);
  CHECK_THAT(processes.reportOf(0, milliseconds(10000)), Contains("rank 1 (") && Contains("the process is gone"));
  CHECK(processes.reportedAt(0) - at < milliseconds(2000));
}

TEST_CASE("a process with an id that nobody used ends, and so does its child") {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    isForkedChild = true;
    setpgid(0, 0);
    makeUniqueId("");
    // The server's thread comes to rest: sanitizers' own locks, were it to hold one, would stay locked in the child.
    std::this_thread::sleep_for(milliseconds(200));
    const pid_t child = fork();
    if (child == 0) exit(17);
    int status = 0;
    waitpid(child, &status, 0);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  int status = 0;
  const bool ended = within(milliseconds(10000), [&] { return waitpid(pid, &status, WNOHANG) == pid; });
  if (!ended) {
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  REQUIRE(ended);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 17);
}

TEST_CASE("descriptors are closed on exec") {
  makeUniqueId("");
  const auto errors = onControls(2, withTimeout(60000), [&](int number, Rank& rank) {
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
