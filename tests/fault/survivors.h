// Ranks as forked processes that scan until something goes wrong, and report how it went.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// A rank's final report. Trivially copyable: it is sent through a pipe.
struct Report {
  int rank = -1;
  int result = -1;      ///< of the first call that failed; Success if none did
  int wrong = 0;        ///< wrong results returned as success
  long scans = 0;       ///< that succeeded
  double failedAt = 0;  ///< seconds on the machine's monotonic clock
  char text[400] = {};  ///< seqparGetLastError
};

/// Seconds on the clock that Report::failedAt is read from.
double now();

/// A gate that one process opens and one other passes afterwards. Create it before the processes.
class Gate {
 public:
  Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();

  void open() const;
  void pass() const;

 private:
  int ends_[2];
};

/// The ranks of one job.
class Job {
 public:
  /// Forks `ranks` processes by `start`, which returns as fork() does; each creates a communicator and runs `body`.
  Job(
      int ranks, int timeoutMs, const std::function<void(seqparComm_t, Report&)>& body,
      const std::function<pid_t(int rank)>& start = [](int) { return fork(); });
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  /// Kills the remaining processes.
  ~Job();

  /// Waits until every rank has its communicator and has scanned with it. False if one ended before.
  bool running();
  void signal(int rank, int number) const;
  /// The status of waitid() of a rank that has ended; none: it has not.
  struct Ending {
    int code = 0, status = 0;
  };
  std::optional<Ending> ending(int rank) const;
  /// Waits for the reports of `ranks`, together at most `seconds`; those of ranks that ended without one, or did not
  /// report in time, are left out.
  std::vector<Report> reports(const std::vector<int>& ranks, double seconds = 3600);

 private:
  struct Process {
    pid_t pid = -1;
    int started = -1;  ///< reading end: one byte when the rank is at work
    int report = -1;   ///< reading end
  };
  std::vector<Process> processes_;
};

/// Notes a failure with its time and text.
void note(Report& report, seqparResult_t result, seqparComm_t comm);
void note(Report& report, seqparResult_t result, const char* text);

/// One All-Scan (SUM of ones) with a known result, of the given algorithm and length; counts it in `report` and records
/// the first failure. False once a call has failed.
bool scanOnce(seqparComm_t comm, int algorithm, size_t elements, Report& report);

/// scanOnce() over all algorithms and some lengths until a call fails.
void scanUntilFailure(seqparComm_t comm, Report& report);

}  // namespace seqpar::test
