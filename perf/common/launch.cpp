#include "launch.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <thread>

namespace seqpar::perf {
namespace {

constexpr int kDefaultRanks = 2;
/// The CTAs of all ranks that share a GPU must be resident at once.
constexpr int kSharedCtas = 64;

using Clock = std::chrono::steady_clock;
/// Threads leave a barrier up to 0.3 us apart, depending on which arrives last. If all ranks are threads of one
/// process, they start together after this time.
constexpr std::chrono::microseconds kStartAfter{2};

/// The last thread that arrives sets the start of all.
struct SetStart {
  void operator()() const noexcept { *start = Clock::now() + kStartAfter; }
  Clock::time_point* start;
};

/// Shared state of the ranks of one process.
struct Meeting {
  Meeting(Processes& launched, int ranks)
      : processes(launched), arrived(ranks, SetStart{&start}), deposits(static_cast<size_t>(ranks)) {}

  Processes& processes;
  Clock::time_point start;
  std::barrier<SetStart> arrived;
  std::vector<std::span<const std::byte>> deposits;
  std::vector<std::byte> mine, all;  ///< of this process, of all processes
};

/// Thread `thread` of each process; thread 0 communicates with the other processes.
class ThreadGroup : public Group {
 public:
  ThreadGroup(int thread, int threads, Meeting& meeting)
      : Group(meeting.processes.rank * threads + thread, meeting.processes.size * threads),
        thread_(thread),
        meeting_(meeting) {}

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    meeting_.deposits[static_cast<size_t>(thread_)] = mine;
    meeting_.arrived.arrive_and_wait();
    if (thread_ == 0) {
      meeting_.mine.clear();
      for (const auto& piece : meeting_.deposits) {
        meeting_.mine.insert(meeting_.mine.end(), piece.begin(), piece.end());
      }
      meeting_.all.resize(all.size());
      meeting_.processes.gather(meeting_.mine, meeting_.all);
    }
    meeting_.arrived.arrive_and_wait();
    std::copy(meeting_.all.begin(), meeting_.all.end(), all.begin());
    meeting_.arrived.arrive_and_wait();
  }

  void barrier() override {
    meeting_.arrived.arrive_and_wait();
    if (meeting_.processes.size > 1) {
      if (thread_ == 0) meeting_.processes.barrier();
      meeting_.arrived.arrive_and_wait();
      return;
    }
    const auto start = meeting_.start;
    while (Clock::now() < start) {
    }
  }

 private:
  int thread_;
  Meeting& meeting_;
};

/// A rank's GPU, and the number of ranks on the fullest GPU; nothing on the host.
struct Place {
  int device = SEQPAR_HOST_DEVICE;
  int sharing = 0;
};

/// The place of rank `local` of `locals` on a host.
Place placeOf(int local, int locals, const Settings& settings) {
  if (!settings.gpu) return {};
  const int first = std::max(settings.firstGpu, 0);
  const int gpus = settings.gpus > 0 ? settings.gpus : std::max(1, gpuCount() - first);
  return {first + local % gpus, (locals + gpus - 1) / gpus};
}

seqparConfig_t configFor(const Settings& settings, const Place& place) {
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  if (settings.timeoutMs > 0) config.timeoutMs = settings.timeoutMs;
  if (settings.ctas > 0) config.ctas = settings.ctas;
  config.device = place.device;
  if (place.sharing > 1) config.ctas = std::max(1, kSharedCtas / place.sharing);
  return config;
}

void makeComm(Group& group, const Settings& settings, Place place) {
  // All hosts use the CTA limit of the fullest GPU.
  const double mine = place.sharing;
  for (const double sharing : group.gather(std::span(&mine, 1))) {
    place.sharing = std::max(place.sharing, static_cast<int>(sharing));
  }
  if (settings.gpu) gpuUse(place.device);
  seqparUniqueId id{};
  if (group.rank() == 0) require(seqparGetUniqueId(&id), "seqparGetUniqueId");
  std::vector<seqparUniqueId> ids(static_cast<size_t>(group.size()));
  group.gather(std::as_bytes(std::span(&id, 1)), std::as_writable_bytes(std::span(ids)));
  const seqparConfig_t config = configFor(settings, place);
  seqparComm_t comm = nullptr;
  require(seqparCommInitRankConfig(&comm, group.size(), ids[0], group.rank(), &config), "seqparCommInitRankConfig");
  group.setComm(comm);
  if (settings.gpu) group.setGpu(makeGpu(group, place.device, place.sharing));
}

void runRank(int thread, int threads, Meeting& meeting, const Settings& settings,
             const std::function<void(Group&)>& body) {
  const Processes& processes = meeting.processes;
  ThreadGroup group(thread, threads, meeting);
  try {
    makeComm(group, settings, placeOf(processes.local * threads + thread, processes.locals * threads, settings));
    body(group);
    group.setGpu(nullptr);
    require(seqparCommDestroy(group.comm()), "seqparCommDestroy");
  } catch (const std::exception& error) {
    const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    std::fprintf(stderr, "rank %d: %s\n", group.rank(),
                 memory ? "the buffers do not fit into memory; expected smaller sizes (-b, -e) or fewer ranks (-t)"
                        : error.what());
    std::fflush(nullptr);
    meeting.processes.abort();
  }
}

}  // namespace

int ranksHere(const Settings& settings) {
  if (settings.threads > 0 || settings.devices > 0)
    return std::max(settings.threads, 1) * std::max(settings.devices, 1);
  if (launchMode() != LaunchMode::Alone) return 1;
  if (!settings.gpu) return kDefaultRanks;
  return settings.gpus > 0 ? settings.gpus : gpuCount();
}

void launch(const Settings& settings, const std::function<void(Group&)>& body) {
  const int threads = ranksHere(settings);
  const auto processes = joinProcesses(settings);
  Meeting meeting(*processes, threads);
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) {
    others.emplace_back([&, thread] { runRank(thread, threads, meeting, settings, body); });
  }
  runRank(0, threads, meeting, settings, body);
}

}  // namespace seqpar::perf
