// Ranks for tests: threads of this process, or forked processes, with an Allgather over memory between them.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/health.h"
#include "bootstrap/allgather.h"
#include "common/timeouts.h"
#include "transport/mailbox.h"

namespace seqpar::testing {

/// The memory through which an Allgather goes, fit for threads and for processes.
class Meeting {
 public:
  static constexpr size_t kPieceBytes = size_t{64} << 10;

  explicit Meeting(int ranks) : ranks_(ranks) {
    const size_t bytes = sizeof(Words) + static_cast<size_t>(ranks) * kPieceBytes;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) failErrno("mmap");
    words_ = new (memory) Words;
    bytes_ = bytes;
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() { munmap(words_, bytes_); }

  int ranks() const { return ranks_; }
  std::byte* piece(int rank) {
    return reinterpret_cast<std::byte*>(words_ + 1) + static_cast<size_t>(rank) * kPieceBytes;
  }

  /// Waits for all ranks, at most a minute.
  void barrier() {
    const unsigned lap = words_->lap;
    if (words_->arrived.fetch_add(1) + 1 == ranks_) {
      words_->arrived = 0;
      ++words_->lap;
      return;
    }
    const auto end = std::chrono::steady_clock::now() + test::kNoTimeout;
    while (words_->lap == lap) {
      if (std::chrono::steady_clock::now() > end) fail(seqparRemoteError, "a rank did not come to the meeting");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  struct Words {
    std::atomic<int> arrived{0};
    std::atomic<unsigned> lap{0};
  };
  int ranks_;
  size_t bytes_;
  Words* words_;
};

class MeetingAllgather final : public Allgather {
 public:
  MeetingAllgather(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return meeting_.ranks(); }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (size_t done = 0; done < mine.size(); done += Meeting::kPieceBytes) {
      const size_t part = std::min(mine.size() - done, Meeting::kPieceBytes);
      std::memcpy(meeting_.piece(rank_), mine.data() + done, part);
      meeting_.barrier();
      for (int rank = 0; rank < size(); ++rank) {
        std::memcpy(all.data() + static_cast<size_t>(rank) * mine.size() + done, meeting_.piece(rank), part);
      }
      meeting_.barrier();
    }
    if (mine.empty()) meeting_.barrier();
  }

  void barrier() {
    std::vector<std::byte> all(static_cast<size_t>(size()));
    const std::byte mine{};
    gather(std::span(&mine, 1), all);
  }

 private:
  Meeting& meeting_;
  int rank_;
};

/// What a rank of a test has.
struct Member {
  MeetingAllgather& control;
  Health& health;
  Mailbox& mail;
  const MailboxDescription& description;
  int rank;
  int size;
  bool waitsForOthers = true;  ///< before its mailbox goes down
};

inline MailboxOptions optionsFor(int ranks) {
  MailboxOptions options;
  options.hostIds.assign(static_cast<size_t>(ranks), "here");
  options.timeout = test::kNoTimeout;
  return options;
}

/// Creates this rank's mailbox, runs `body`, waits for the other ranks, and destroys the mailbox.
inline void runMember(Meeting& meeting, int rank, const MailboxOptions& options,
                      const std::function<void(Member&)>& body) {
  MeetingAllgather control(meeting, rank);
  Health health;
  MailboxDescription description;
  const auto mail = makeMailbox(control, options, health, description);
  Member member{control, health, *mail, description, rank, meeting.ranks()};
  body(member);
  if (member.waitsForOthers) control.barrier();
}

/// Runs `body` on one thread per rank. Returns each thread's error, "" if there was none.
inline std::vector<std::string> runThreads(const MailboxOptions& options, const std::function<void(Member&)>& body) {
  const int ranks = static_cast<int>(options.hostIds.size());
  Meeting meeting(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        runMember(meeting, rank, options, body);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// Starts a process per rank. Its exit status is 0 if `body` returned true.
inline std::vector<pid_t> startProcesses(Meeting& meeting, const MailboxOptions& options,
                                         const std::function<bool(Member&)>& body) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < meeting.ranks(); ++rank) {
    const pid_t process = fork();
    if (process < 0) failErrno("fork");
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      bool good = false;
      try {
        runMember(meeting, rank, options, [&](Member& member) { good = body(member); });
      } catch (const std::exception& error) {
        std::cerr << "rank " << rank << ": " << error.what() << std::endl;
        good = false;
      }
      _exit(good ? 0 : 1);
    }
    processes.push_back(process);
  }
  return processes;
}

/// Waits for a process. Its exit status, or -1 if a signal ended it.
inline int join(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// The `index`-th processor that this process may use, in turn.
inline void pinTo(int index) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  int left = index % CPU_COUNT(&allowed);
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || left-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

}  // namespace seqpar::testing
