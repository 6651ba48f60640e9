// Ranks as forked processes that can be killed and stopped.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>

#include "gathering.h"

namespace seqpar::test {

constexpr int kMaxProcesses = 8;

/// A rank's final report.
struct Report {
  std::atomic<bool> arrived{false};
  std::array<char, 600> text{};

  void write(const std::string& what) {
    text.fill(0);
    what.copy(text.data(), text.size() - 1);
    arrived = true;
  }
};

/// Memory of all processes of a test.
struct Page {
  std::atomic<bool> started{false};
  seqparUniqueId id{};
  std::atomic<int> ready{0};
  std::array<Report, kMaxProcesses> reports;
};

/// Forks ranks that run body(rank, page) once start() was called, and report "" or what it threw. No process outlives
/// the object, or the test: their parent's death ends them.
class Processes {
 public:
  Processes(int nranks, const std::function<void(int, Page&)>& body) {
    void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) failErrno("mmap");
    page_ = new (memory) Page;
    for (int rank = 0; rank < nranks; ++rank) {
      const pid_t pid = fork();
      if (pid < 0) failErrno("fork");
      if (pid == 0) runChild(rank, body);
      pids_.push_back(pid);
    }
  }
  ~Processes() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    munmap(page_, sizeof(Page));
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  Page& page() { return *page_; }

  void start(const seqparUniqueId& id = {}) {
    page_->id = id;
    page_->started = true;
  }
  /// The same, with the id of one more process: a thread of the parent could hold a lock of the sanitizer's allocator
  /// while it forks the next test's ranks, which would then wait for it forever.
  void startWithId() {
    const pid_t pid = fork();
    if (pid < 0) failErrno("fork");
    if (pid == 0) serve();
    pids_.push_back(pid);
  }
  /// Waits for `count` ranks to be ready; false if a rank reported a failure instead.
  bool allReady(int count) {
    waitUntil([&] { return page_->ready >= count || anyFailure(); });
    return page_->ready >= count;
  }
  void signal(int rank, int number) { kill(pids_.at(static_cast<size_t>(rank)), number); }

  /// What the rank reported, once it has.
  std::string reportOf(int rank) {
    auto& report = page_->reports[static_cast<size_t>(rank)];
    waitUntil([&] { return report.arrived.load(); });
    return report.text.data();
  }

 private:
  bool anyFailure() const {
    return std::any_of(page_->reports.begin(), page_->reports.end(),
                       [](const Report& one) { return one.arrived && one.text[0] != 0; });
  }

  [[noreturn]] void serve() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      start(makeUniqueId(""));
    } catch (const std::exception& error) {
      for (auto& report : page_->reports) report.write(error.what());
    }
    for (;;) pause();
  }
  [[noreturn]] void runChild(int rank, const std::function<void(int, Page&)>& body) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::string text;
    try {
      waitUntil([&] { return page_->started.load(); });
      body(rank, *page_);
    } catch (const std::exception& error) {
      text = error.what();
    }
    page_->reports[static_cast<size_t>(rank)].write(text);
    _exit(0);
  }

  Page* page_ = nullptr;
  std::vector<pid_t> pids_;
};

/// A rank's part in the tests of failures: it joins, signals that it is ready, and reports the failure that it notices.
inline void awaitFailure(int number, int nranks, Page& page, const ControlOptions& options) {
  auto rendezvous = joinRendezvous(page.id, number, nranks, withTimeout(kNoTimeoutMs));
  Rank rank(*rendezvous, options);
  rendezvous.reset();
  checkGathers(*rank.control, number, nranks, 3);
  ++page.ready;
  waitUntil([&] { return !rank.health.ok(); });
  // Before the connection ends, which may take its while.
  throw std::runtime_error(rank.health.text());
}

}  // namespace seqpar::test
