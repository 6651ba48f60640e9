// The processes of a run, for every launcher.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "settings.h"

namespace seqpar::perf {

enum class LaunchMode { Alone, Mpi, Environment };

/// The launcher of this process: mpirun, a launcher that sets RANK and similar variables, or none.
LaunchMode launchMode();

/// True in the one process that prints; usable before Processes exist.
bool speaks();

/// Called by one thread of each process.
class Processes {
 public:
  Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  virtual ~Processes() = default;

  int rank = 0, size = 1;
  int local = 0, locals = 1;  ///< index and count among the processes of this host

  /// Collective: equal-sized blocks of all processes in rank order.
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Collective: returns when all processes have called it.
  virtual void barrier() {}
  /// Collective: keeps only processes of the same color, in the same order. At most once.
  virtual void split(int color) = 0;
  /// Ends the job after a failure.
  [[noreturn]] virtual void abort();
};

/// Joins the processes that were launched together. `timeoutMs` 0: the library's default.
std::unique_ptr<Processes> joinProcesses(const Settings& settings);

}  // namespace seqpar::perf
