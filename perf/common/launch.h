// Starts the ranks of a perf binary, whichever way it was launched, and lets them agree outside of what is measured.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpu.h"
#include "seqpar/seqpar.h"
#include "settings.h"

namespace seqpar::perf {

/// Throws std::runtime_error with the call and the library's own sentence unless `result` is success.
void require(seqparResult_t result, const char* call, seqparComm_t comm = nullptr);

/// One rank's place among all ranks.
class Group {
 public:
  Group(int rank, int size) : rank_(rank), size_(size) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  seqparComm_t comm() const { return comm_; }
  /// This rank's GPU; null on the host.
  Gpu* gpu() const { return gpu_.get(); }
  void setGpu(std::unique_ptr<Gpu> gpu) { gpu_ = std::move(gpu); }

  /// Collective: equal-sized pieces of all ranks in rank order.
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Collective: returns when all ranks have called it.
  virtual void barrier();

  /// gather() of equally many numbers a rank.
  std::vector<double> gather(std::span<const double> mine);
  /// gather() of one text a rank; texts are cut after 255 bytes.
  std::vector<std::string> gatherText(const std::string& mine);

 protected:
  seqparComm_t comm_ = nullptr;

 private:
  int rank_, size_;
  std::unique_ptr<Gpu> gpu_;
};

enum class LaunchMode { Threads, Mpi, Environment };

/// Threads if the settings ask for them; else whatever launched this process; else threads.
LaunchMode launchMode(const Settings& settings);

/// True in the one process that speaks for all; usable before launch().
bool speaks();

/// Runs `body` on every rank of this process with a communicator made, and frees it. If a rank throws, its text goes to
/// stderr and the process (under MPI: the whole job) ends with status 1.
void launch(const Settings& settings, const std::function<void(Group&)>& body);

}  // namespace seqpar::perf
