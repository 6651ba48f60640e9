// Ranks as forked processes that can be killed and stopped.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <new>

#include "gathering.h"

namespace seqpar::test {

constexpr int kMaxProcesses = 8;

/// What a rank has to say when it ends.
struct Report {
  std::atomic<bool> there{false};
  std::chrono::steady_clock::time_point at;
  std::array<char, 600> text{};

  void write(const std::string& what) {
    at = std::chrono::steady_clock::now();
    text.fill(0);
    what.copy(text.data(), text.size() - 1);
    there = true;
  }
};

/// Memory of all processes of a test.
struct Page {
  std::atomic<bool> started{false};
  seqparUniqueId id{};
  std::atomic<int> ready{0};
  std::array<Report, kMaxProcesses> reports;
};

/// Forks ranks that run body(rank, page) once start() was called, and report "" or what it threw. No wait is without a
/// bound, and no process outlives the object.
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
  bool allReady(int count) {
    return within(std::chrono::milliseconds(30000), [&] { return page_->ready >= count; });
  }
  void signal(int rank, int number) { kill(pids_.at(static_cast<size_t>(rank)), number); }

  /// What the rank reported, or "no report" if it did not within `bound`.
  std::string reportOf(int rank, std::chrono::milliseconds bound) {
    auto& report = page_->reports[static_cast<size_t>(rank)];
    if (!within(bound, [&] { return report.there.load(); })) return "no report";
    return report.text.data();
  }
  std::chrono::steady_clock::time_point reportedAt(int rank) { return page_->reports[static_cast<size_t>(rank)].at; }

 private:
  [[noreturn]] void runChild(int rank, const std::function<void(int, Page&)>& body) {
    std::string text;
    try {
      expect(within(std::chrono::milliseconds(30000), [&] { return page_->started.load(); }), "was not started");
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

/// A rank's life in the tests of failures: it joins, says that it is ready, and reports the failure that it notices.
inline void awaitFailure(int number, int nranks, Page& page, const ControlOptions& options) {
  auto meeting = joinRendezvous(page.id, number, nranks, withTimeout(30000));
  Rank rank(*meeting, options);
  meeting.reset();
  checkGathers(*rank.control, number, nranks, 3);
  ++page.ready;
  expect(within(std::chrono::milliseconds(30000), [&] { return !rank.health.ok(); }), "no failure was noticed");
  // Before the connection ends, which may take its while.
  throw std::runtime_error(rank.health.text());
}

}  // namespace seqpar::test
