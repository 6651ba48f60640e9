#include "processes.h"

#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "group.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

/// An integer that a launcher stored in the environment.
int launched(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : static_cast<int>(parseInteger(value, 0, 1 << 20));
}

class OneProcess : public Processes {
 public:
  /// Without MPI, mpirun would start independent single processes; rejects that.
  OneProcess() {
#ifndef SEQPAR_PERF_MPI
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
      if (launched(name, 1) == 1) continue;
      throw UsageError(std::string(name) + " is " + std::getenv(name) +
                       ", but this program was built without MPI: expected RANK, WORLD_SIZE, MASTER_ADDR and "
                       "MASTER_PORT, ranks as threads (-t), or a build with -DSEQPAR_MPI=ON");
    }
#endif
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (!mine.empty()) std::memcpy(all.data(), mine.data(), mine.size());
  }
  void split(int) override {}
};

/// Processes launched with environment variables only: they communicate through the library itself, in host memory.
class EnvironmentProcesses : public Processes {
 public:
  explicit EnvironmentProcesses(const Settings& settings) {
    rank = launched("RANK", 0);
    size = launched("WORLD_SIZE", 1);
    local = launched("LOCAL_RANK", rank);
    locals = launched("LOCAL_WORLD_SIZE", size);
    if (settings.timeoutMs > 0) config_.timeoutMs = settings.timeoutMs;
    require(seqparCommInitEnv(&comm_, &config_), "seqparCommInitEnv");
  }
  ~EnvironmentProcesses() override { seqparCommDestroy(comm_); }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const auto piece = [&](int r) { return all.data() + static_cast<size_t>((r + size) % size) * mine.size(); };
    if (!mine.empty()) std::memcpy(piece(rank), mine.data(), mine.size());
    const int next = (rank + 1) % size;
    const int previous = (rank + size - 1) % size;
    for (int step = 0; step + 1 < size; ++step) {
      require(seqparSendRecv(piece(rank - step), mine.size(), next, piece(rank - step - 1), mine.size(), previous,
                             comm_, nullptr),
              "seqparSendRecv", comm_);
    }
  }

  void barrier() override {
    std::vector<std::byte> all(static_cast<size_t>(size));
    const std::byte mine{};
    gather(std::span(&mine, 1), all);
  }

  void split(int color) override {
    seqparComm_t part = nullptr;
    require(seqparCommSplit(comm_, color, rank, &part, &config_), "seqparCommSplit", comm_);
    seqparCommDestroy(comm_);
    comm_ = part;
    require(seqparCommUserRank(comm_, &rank), "seqparCommUserRank", comm_);
    require(seqparCommCount(comm_, &size), "seqparCommCount", comm_);
  }

 private:
  seqparConfig_t config_ = SEQPAR_CONFIG_INITIALIZER;
  seqparComm_t comm_ = nullptr;
};

#ifdef SEQPAR_PERF_MPI
class MpiProcesses : public Processes {
 public:
  MpiProcesses() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local);
    MPI_Comm_size(host, &locals);
    MPI_Comm_free(&host);
    count();
  }
  ~MpiProcesses() override { MPI_Finalize(); }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const int bytes = static_cast<int>(mine.size());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_, &request);
    finish(request);
  }
  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(comm_, &request);
    finish(request);
  }
  void split(int color) override {
    MPI_Comm_split(MPI_COMM_WORLD, color, rank, &comm_);
    count();
  }
  void abort() override {
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    Processes::abort();
  }

 private:
  void count() {
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &size);
  }
  /// Waits while yielding the processor to ranks that are still starting.
  static void finish(MPI_Request request) {
    int done = 0;
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) sched_yield();
  }

  MPI_Comm comm_ = MPI_COMM_WORLD;
};
#endif

const char* launchedRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "0";
}

}  // namespace

LaunchMode launchMode() {
#ifdef SEQPAR_PERF_MPI
  if (std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMIX_RANK") || std::getenv("PMI_SIZE")) {
    return LaunchMode::Mpi;
  }
#endif
  return std::getenv("RANK") && std::getenv("WORLD_SIZE") ? LaunchMode::Environment : LaunchMode::Alone;
}

bool speaks() {
  return std::strcmp(launchedRank(), "0") == 0;
}

void Processes::abort() {
  std::_Exit(EXIT_FAILURE);
}

std::unique_ptr<Processes> joinProcesses(const Settings& settings) {
  std::unique_ptr<Processes> processes;
  switch (launchMode()) {
    case LaunchMode::Alone:
      processes = std::make_unique<OneProcess>();
      break;
    case LaunchMode::Environment:
      processes = std::make_unique<EnvironmentProcesses>(settings);
      break;
    case LaunchMode::Mpi:
#ifdef SEQPAR_PERF_MPI
      processes = std::make_unique<MpiProcesses>();
#endif
      break;
  }
  if (!settings.split.empty()) processes->split(splitColor(settings.split, processes->rank));
  return processes;
}

}  // namespace seqpar::perf
