#include "ranks.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "seqpar/exchange.h"
#ifdef SEQPAR_INFO_MPI
#include "seqpar/seqpar_mpi.h"
#endif

namespace seqpar::info {
namespace {

[[noreturn]] void endJob() {
  std::fflush(nullptr);
#ifdef SEQPAR_INFO_MPI
  if (launcher() == Launcher::Mpi) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
#endif
  std::_Exit(EXIT_FAILURE);
}

/// Without MPI, mpirun would start independent programs.
void rejectMpirun() {
#ifndef SEQPAR_INFO_MPI
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const size = std::getenv(name);
    if (size == nullptr || std::strcmp(size, "1") == 0) continue;
    throw std::runtime_error(std::string(name) + " is " + size +
                             ", but this program was built without MPI: expected RANK, WORLD_SIZE, MASTER_ADDR and "
                             "MASTER_PORT, ranks as threads (-t), or a build with -DSEQPAR_MPI=ON");
  }
#endif
}

/// Calls `create` and then `body`; a failure ends the job.
void runRank(const std::function<void(seqparComm_t*)>& create, const std::function<void(seqparComm_t)>& body) {
  try {
    seqparComm_t comm = nullptr;
    create(&comm);
    body(comm);
    require(seqparCommDestroy(comm), "seqparCommDestroy");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "seqpar_info: %s\n", error.what());
    endJob();
  }
}

void onThreads(int threads, const std::function<void(seqparComm_t)>& body) {
  seqparUniqueId id{};
  require(seqparGetUniqueId(&id), "seqparGetUniqueId");
  const auto rankBody = [&](int rank) {
    runRank(
        [&](seqparComm_t* comm) {
          require(seqparCommInitRankConfig(comm, threads, id, rank, nullptr), "seqparCommInitRankConfig");
        },
        body);
  };
  std::vector<std::jthread> others;
  for (int rank = 1; rank < threads; ++rank) others.emplace_back(rankBody, rank);
  rankBody(0);
}

}  // namespace

void require(seqparResult_t result, const char* call, seqparComm_t comm) {
  if (result == seqparSuccess) return;
  const std::string detail = seqparGetLastError(comm), prefix = std::string(call) + ": ";
  if (detail.starts_with(prefix)) throw std::runtime_error(detail);
  throw std::runtime_error(prefix + (detail.empty() ? seqparGetErrorString(result) : detail));
}

Launcher launcher() {
#ifdef SEQPAR_INFO_MPI
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"}) {
    if (std::getenv(name) != nullptr) return Launcher::Mpi;
  }
#endif
  const bool given = std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr;
  return given ? Launcher::Environment : Launcher::None;
}

bool prints() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK"}) {
    if (const char* const rank = std::getenv(name)) return std::strcmp(rank, "0") == 0;
  }
  return true;
}

void onRanks(int threads, const std::function<void(seqparComm_t)>& body) {
  switch (launcher()) {
    case Launcher::None:
      rejectMpirun();
      onThreads(threads, body);
      break;
    case Launcher::Environment:
      runRank([](seqparComm_t* comm) { require(seqparCommInitEnv(comm, nullptr), "seqparCommInitEnv"); }, body);
      break;
    case Launcher::Mpi:
#ifdef SEQPAR_INFO_MPI
      MPI_Init(nullptr, nullptr);
      runRank(
          [](seqparComm_t* comm) { require(seqparCommInitMPI(comm, MPI_COMM_WORLD, nullptr), "seqparCommInitMPI"); },
          body);
      MPI_Finalize();
#endif
      break;
  }
}

std::vector<Report> gather(const Report& mine, seqparComm_t comm) {
  int ranks = 0;
  require(seqparCommCount(comm, &ranks), "seqparCommCount", comm);
  std::vector<Report> all(static_cast<size_t>(ranks));
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.tokens = 1;
  shards.inner = sizeof(Report) / sizeof(float);
  require(seqparAllGather(&mine, all.data(), &shards, comm, nullptr), "seqparAllGather", comm);
  return all;
}

}  // namespace seqpar::info
