// gpu_suite NAME RANKS: a suite of the host tests on GPU communicators. Ranks are threads of this process, or, under
// mpirun, processes (RANKS is then ignored). With more ranks than GPUs several share one. gpu_suite soak RANKS [SECONDS
// [SEED]] mixes all parts. Without MPI: SEQPAR_TEST_SEED=1 perf/ranks.sh 4 1 gpu_suite scan: four processes.
#include <functional>
#include <map>

#include "gpu/support/device_backend.h"
#include "mp/exchange_ops_suite.h"
#include "mp/exchange_suite.h"
#include "mp/mesh_suite.h"
#include "mp/redistribute_suite.h"
#include "mp/ring_suite.h"
#include "mp/scan_suite.h"
#include "mp/soak_suite.h"
#ifdef SEQPAR_TEST_MPI
#include "common/draw_seed.h"
#include "common/run_processes.h"
#endif

using namespace seqpar::test;

namespace {

using Suite = std::function<void(seqparComm_t, std::uint64_t seed)>;

struct {
  int seconds = 10;
  std::uint64_t seed = 0;  ///< 0: drawn
} soak;

const std::map<std::string, Suite>& suites() {
  static const std::map<std::string, Suite> all{
      {"exchange", [](seqparComm_t comm, std::uint64_t seed) { runExchangeSuite(comm, seed, 40); }},
      {"ops", [](seqparComm_t comm, std::uint64_t seed) { runExchangeOps(comm, seed, {.most = 12000}); }},
      {"redistribute", [](seqparComm_t comm, std::uint64_t seed) { runRedistributeSuite(comm, seed, 20); }},
      {"mesh", [](seqparComm_t comm, std::uint64_t seed) { runMeshSuite(comm, seed, 4); }},
      {"ring", [](seqparComm_t comm, std::uint64_t seed) { runRingSuite(comm, seed, 12); }},
      {"soak",
       [](seqparComm_t comm, std::uint64_t seed) { runSoak(comm, soak.seed == 0 ? seed : soak.seed, soak.seconds); }},
      {"scan", [](seqparComm_t comm, std::uint64_t seed) { runScanSuite(comm, seed, 160); }},
  };
  return all;
}

constexpr int kIdleTimeoutMs = 20000;

seqparConfig_t configOf(int rank, int ranks, int gpus, int timeoutMs) {
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.device = rank % gpus;
  config.timeoutMs = timeoutMs;
  // Ranks that share a GPU must all fit on it.
  const int sharing = (ranks + gpus - 1) / gpus;
  config.ctas = sharing > 1 ? 64 / sharing : SEQPAR_CONFIG_UNDEF_INT;
  return config;
}

void runOn(seqparComm_t comm, int device, const Suite& suite, std::uint64_t seed) {
  expectCuda(cudaSetDevice(device), "cudaSetDevice");
  try {
    suite(comm, seed);
  } catch (...) {
    seqparCommAbort(comm);
    throw;
  }
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  expectSuccess(seqparCommQuery(comm, &info), "seqparCommQuery");
  if (info.rank == 0) std::printf("%s (%s)\n", info.transport, info.reason);
}

int runThreads(const Suite& suite, int ranks, int gpus) {
  const auto seed = seqpar::test::drawSeed();
  std::printf("seed %llu, %d ranks on %d GPUs\n", static_cast<unsigned long long>(seed), ranks, gpus);
  seqparUniqueId id;
  expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
  const auto errors = onThreads(ranks, [&](int rank) {
    const auto config = configOf(rank, ranks, gpus, patienceMs(kIdleTimeoutMs));
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    runOn(comm, config.device, suite, seed);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  std::printf("%s", errors.empty() ? "all right\n" : errors.c_str());
  return errors.empty() ? 0 : 1;
}

/// A process with the environment of perf/ranks.sh or torchrun.
int runOneOfProcesses(const Suite& suite, int gpus) {
  const char* const seed = std::getenv("SEQPAR_TEST_SEED");
  expect(seed != nullptr, "SEQPAR_TEST_SEED is not set, expected a number, equal on all ranks");
  const int ranks = std::atoi(std::getenv("WORLD_SIZE"));
  const auto config = configOf(std::atoi(std::getenv("RANK")), ranks, gpus, kNoTimeoutMs);  // equal on all ranks
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitEnv(&comm, &config), "seqparCommInitEnv");
  runOn(comm, config.device, suite, std::strtoull(seed, nullptr, 10));
  expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  std::printf("all right\n");
  return 0;
}

#ifdef SEQPAR_TEST_MPI
int runProcess(const Suite& suite, int gpus) {
  int device = 0;
  const auto init = [&] {
    int rank = 0, ranks = 0, timeoutMs = patienceMs(kIdleTimeoutMs);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0) std::printf("%d processes on %d GPUs\n", ranks, gpus);
    MPI_Bcast(&timeoutMs, 1, MPI_INT, 0, MPI_COMM_WORLD);
    const auto config = configOf(rank, ranks, gpus, timeoutMs);
    device = config.device;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitMPI(&comm, MPI_COMM_WORLD, &config), "seqparCommInitMPI");
    return comm;
  };
  return runAsProcesses([&](seqparComm_t comm, std::uint64_t seed) { runOn(comm, device, suite, seed); }, init);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const auto suite = argc > 1 ? suites().find(argv[1]) : suites().end();
  if (suite == suites().end()) {
    std::printf("usage: gpu_suite NAME [RANKS [SECONDS [SEED]]]; names:");
    for (const auto& [name, body] : suites()) std::printf(" %s", name.c_str());
    std::printf("\n");
    return 2;
  }
  const int gpus = requireGpus(1);
  const int ranks = argc > 2 ? std::atoi(argv[2]) : gpus;
  if (argc > 3) soak.seconds = std::atoi(argv[3]);
  if (argc > 4) soak.seed = std::strtoull(argv[4], nullptr, 10);
  const bool mpi = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  const bool started = !mpi && std::getenv("WORLD_SIZE") != nullptr && std::getenv("RANK") != nullptr;
  const bool processes = mpi || started;
  DeviceBackend device(processes ? 1 : ranks, !processes && ranks > gpus);
  backend() = &device;
#ifdef SEQPAR_TEST_MPI
  if (mpi) return runProcess(suite->second, gpus);
#endif
  try {
    if (started) return runOneOfProcesses(suite->second, gpus);
    return runThreads(suite->second, ranks, gpus);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
