#include "launch.h"

#include <sched.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#ifdef SEQPAR_PERF_MPI
#include "seqpar/seqpar_mpi.h"
#endif

namespace seqpar::perf {
namespace {

constexpr int kDefaultThreads = 2;
constexpr size_t kTextBytes = 256;

/// What the ranks of one process share.
struct Meeting {
  explicit Meeting(int size) : arrived(size), mine(static_cast<size_t>(size)) {}
  std::barrier<> arrived;
  std::vector<const std::byte*> mine;
};

class ThreadGroup : public Group {
 public:
  ThreadGroup(int rank, int size, Meeting& meeting, seqparComm_t comm) : Group(rank, size), meeting_(meeting) {
    comm_ = comm;
  }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    meeting_.mine[static_cast<size_t>(rank())] = mine.data();
    barrier();
    for (size_t r = 0; r < meeting_.mine.size(); ++r) {
      std::memcpy(all.data() + r * mine.size(), meeting_.mine[r], mine.size());
    }
    barrier();
  }

  void barrier() override { meeting_.arrived.arrive_and_wait(); }

 private:
  Meeting& meeting_;
};

/// Ranks that were given nothing but an environment: they agree over the library itself.
class EnvironmentGroup : public Group {
 public:
  EnvironmentGroup(int rank, int size, seqparComm_t comm) : Group(rank, size) { comm_ = comm; }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const auto piece = [&](int r) { return all.data() + static_cast<size_t>((r + size()) % size()) * mine.size(); };
    std::memcpy(piece(rank()), mine.data(), mine.size());
    const int next = (rank() + 1) % size();
    const int previous = (rank() + size() - 1) % size();
    for (int step = 0; step + 1 < size(); ++step) {
      require(seqparSendRecv(piece(rank() - step), mine.size(), next, piece(rank() - step - 1), mine.size(), previous,
                             comm(), nullptr),
              "seqparSendRecv", comm());
    }
  }
};

#ifdef SEQPAR_PERF_MPI
/// Waits without keeping the processor from ranks that are still to come.
void finish(MPI_Request request) {
  int done = 0;
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) sched_yield();
}

class MpiGroup : public Group {
 public:
  MpiGroup(int rank, int size, seqparComm_t comm) : Group(rank, size) { comm_ = comm; }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const int bytes = static_cast<int>(mine.size());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    finish(request);
  }

  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    finish(request);
  }
};
#endif

void endJob(int rank, const std::exception& error, LaunchMode mode) {
  std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  std::fflush(nullptr);
#ifdef SEQPAR_PERF_MPI
  if (mode == LaunchMode::Mpi) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
#endif
  static_cast<void>(mode);
  std::_Exit(EXIT_FAILURE);
}

void runRank(Group& group, LaunchMode mode, const std::function<void(Group&)>& body) {
  try {
    body(group);
    require(seqparCommDestroy(group.comm()), "seqparCommDestroy");
  } catch (const std::exception& error) {
    endJob(group.rank(), error, mode);
  }
}

void launchThreads(int size, int timeoutMs, const std::function<void(Group&)>& body) {
  // seqparCommInitAll() takes no configuration, so the timeout goes by the environment, before any thread exists.
  if (timeoutMs > 0) setenv("SEQPAR_TIMEOUT", std::to_string(timeoutMs / 1000.0).c_str(), 1);
  std::vector<seqparComm_t> comms(static_cast<size_t>(size));
  require(seqparCommInitAll(comms.data(), size, nullptr), "seqparCommInitAll");
  Meeting meeting(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadGroup group(rank, size, meeting, comms[static_cast<size_t>(rank)]);
      runRank(group, LaunchMode::Threads, body);
    });
  }
}

template <typename ProcessGroup>
void runProcess(seqparComm_t comm, LaunchMode mode, const std::function<void(Group&)>& body) {
  int rank = 0;
  int size = 0;
  require(seqparCommUserRank(comm, &rank), "seqparCommUserRank", comm);
  require(seqparCommCount(comm, &size), "seqparCommCount", comm);
  ProcessGroup group(rank, size, comm);
  runRank(group, mode, body);
}

const char* launchedRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "0";
}

}  // namespace

void require(seqparResult_t result, const char* call, seqparComm_t comm) {
  if (result == seqparSuccess) return;
  std::string text = std::string(call) + ": " + seqparGetErrorString(result);
  const std::string detail = seqparGetLastError(comm);
  if (!detail.empty()) text += ": " + detail;
  throw std::runtime_error(text);
}

void Group::barrier() {
  std::vector<std::byte> all(static_cast<size_t>(size_));
  const std::byte mine{};
  gather(std::span(&mine, 1), all);
}

std::vector<double> Group::gather(std::span<const double> mine) {
  std::vector<double> all(mine.size() * static_cast<size_t>(size_));
  gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  return all;
}

std::vector<std::string> Group::gatherText(const std::string& mine) {
  std::string padded = mine.substr(0, kTextBytes - 1);
  padded.resize(kTextBytes, '\0');
  std::vector<char> all(kTextBytes * static_cast<size_t>(size_));
  gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < all.size(); begin += kTextBytes) texts.emplace_back(all.data() + begin);
  return texts;
}

LaunchMode launchMode(int threads) {
  if (threads > 0) return LaunchMode::Threads;
#ifdef SEQPAR_PERF_MPI
  if (std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMIX_RANK") || std::getenv("PMI_SIZE")) {
    return LaunchMode::Mpi;
  }
#endif
  return std::getenv("RANK") && std::getenv("WORLD_SIZE") ? LaunchMode::Environment : LaunchMode::Threads;
}

bool speaks() {
  return std::strcmp(launchedRank(), "0") == 0;
}

void launch(int threads, int timeoutMs, const std::function<void(Group&)>& body) {
  const LaunchMode mode = launchMode(threads);
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  if (timeoutMs > 0) config.timeoutMs = timeoutMs;
  seqparComm_t comm = nullptr;
  if (mode == LaunchMode::Threads) {
    launchThreads(threads > 0 ? threads : kDefaultThreads, timeoutMs, body);
  } else if (mode == LaunchMode::Environment) {
    require(seqparCommInitEnv(&comm, &config), "seqparCommInitEnv");
    runProcess<EnvironmentGroup>(comm, mode, body);
  } else {
#ifdef SEQPAR_PERF_MPI
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    require(seqparCommInitMPI(&comm, MPI_COMM_WORLD, &config), "seqparCommInitMPI");
    runProcess<MpiGroup>(comm, mode, body);
    MPI_Finalize();
#endif
  }
}

}  // namespace seqpar::perf
