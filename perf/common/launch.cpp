#include "launch.h"

#include <sched.h>

#include <algorithm>
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

/// Ranks that were given nothing but an environment: they agree over the library itself, in host memory.
class EnvironmentGroup : public Group {
 public:
  EnvironmentGroup(int rank, int size, seqparComm_t comm, seqparComm_t host) : Group(rank, size), host_(host) {
    comm_ = comm;
  }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const auto piece = [&](int r) { return all.data() + static_cast<size_t>((r + size()) % size()) * mine.size(); };
    std::memcpy(piece(rank()), mine.data(), mine.size());
    const int next = (rank() + 1) % size();
    const int previous = (rank() + size() - 1) % size();
    for (int step = 0; step + 1 < size(); ++step) {
      require(seqparSendRecv(piece(rank() - step), mine.size(), next, piece(rank() - step - 1), mine.size(), previous,
                             host_, nullptr),
              "seqparSendRecv", host_);
    }
  }

 private:
  seqparComm_t host_;
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

/// Which GPU a rank has, and how many ranks the fullest GPU has; nothing on the host.
struct Place {
  int device = SEQPAR_HOST_DEVICE;
  int sharing = 0;
};

/// The place of rank `local` of `locals` on a host.
Place placeOf(int local, int locals, const Settings& settings) {
  if (!settings.gpu) return {};
  const int gpus = settings.gpus > 0 ? settings.gpus : gpuCount();
  return {local % gpus, (locals + gpus - 1) / gpus};
}

/// The CTAs of ranks that share a GPU must all fit on it at once.
constexpr int kSharedCtas = 64;

seqparConfig_t configFor(const Settings& settings, const Place& place) {
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  if (settings.timeoutMs > 0) config.timeoutMs = settings.timeoutMs;
  config.device = place.device;
  if (place.sharing > 1) config.ctas = std::max(1, kSharedCtas / place.sharing);
  return config;
}

void runRank(Group& group, const Place& place, LaunchMode mode, const std::function<void(Group&)>& body) {
  try {
    if (place.device != SEQPAR_HOST_DEVICE) group.setGpu(makeGpu(group, place.device, place.sharing));
    body(group);
    group.setGpu(nullptr);
    require(seqparCommDestroy(group.comm()), "seqparCommDestroy");
  } catch (const std::exception& error) {
    endJob(group.rank(), error, mode);
  }
}

void launchThreads(const Settings& settings, const std::function<void(Group&)>& body) {
  int size = settings.threads > 0 ? settings.threads : kDefaultThreads;
  if (settings.gpu && settings.threads == 0) size = settings.gpus > 0 ? settings.gpus : gpuCount();
  Meeting meeting(size);
  seqparUniqueId id;
  require(seqparGetUniqueId(&id), "seqparGetUniqueId");
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const Place place = placeOf(rank, size, settings);
      seqparComm_t comm = nullptr;
      try {
        if (settings.gpu) gpuUse(place.device);
        const seqparConfig_t config = configFor(settings, place);
        require(seqparCommInitRankConfig(&comm, size, id, rank, &config), "seqparCommInitRankConfig");
      } catch (const std::exception& error) {
        endJob(rank, error, LaunchMode::Threads);
      }
      ThreadGroup group(rank, size, meeting, comm);
      runRank(group, place, LaunchMode::Threads, body);
    });
  }
}

/// A number that a launcher left in the environment.
int launched(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : static_cast<int>(parseInteger(value, 0, 1 << 20));
}

void launchFromEnvironment(const Settings& settings, const std::function<void(Group&)>& body) {
  const int rank = launched("RANK", 0);
  const int size = launched("WORLD_SIZE", 1);
  const Place place = placeOf(launched("LOCAL_RANK", rank), launched("LOCAL_WORLD_SIZE", size), settings);
  if (settings.gpu) gpuUse(place.device);
  seqparConfig_t config = configFor(settings, {});
  seqparComm_t host = nullptr;
  require(seqparCommInitEnv(&host, &config), "seqparCommInitEnv");
  seqparComm_t comm = host;
  if (settings.gpu) {
    config = configFor(settings, place);
    require(seqparCommSplit(host, 0, rank, &comm, &config), "seqparCommSplit", host);
  }
  EnvironmentGroup group(rank, size, comm, host);
  runRank(group, place, LaunchMode::Environment, body);
  if (comm != host) require(seqparCommDestroy(host), "seqparCommDestroy");
}

#ifdef SEQPAR_PERF_MPI
void launchMpi(const Settings& settings, const std::function<void(Group&)>& body) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  int rank = 0, size = 0, local = 0, locals = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local);
  MPI_Comm_size(host, &locals);
  MPI_Comm_free(&host);
  try {
    Place place = placeOf(local, locals, settings);
    MPI_Allreduce(MPI_IN_PLACE, &place.sharing, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (settings.gpu) gpuUse(place.device);
    const seqparConfig_t config = configFor(settings, place);
    seqparComm_t comm = nullptr;
    require(seqparCommInitMPI(&comm, MPI_COMM_WORLD, &config), "seqparCommInitMPI");
    MpiGroup group(rank, size, comm);
    runRank(group, place, LaunchMode::Mpi, body);
  } catch (const std::exception& error) {
    endJob(rank, error, LaunchMode::Mpi);
  }
  MPI_Finalize();
}
#endif

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

LaunchMode launchMode(const Settings& settings) {
  if (settings.threads > 0) return LaunchMode::Threads;
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

void launch(const Settings& settings, const std::function<void(Group&)>& body) {
  switch (launchMode(settings)) {
    case LaunchMode::Threads:
      return launchThreads(settings, body);
    case LaunchMode::Environment:
      return launchFromEnvironment(settings, body);
    case LaunchMode::Mpi:
#ifdef SEQPAR_PERF_MPI
      return launchMpi(settings, body);
#endif
      break;
  }
}

}  // namespace seqpar::perf
