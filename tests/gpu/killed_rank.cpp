// gpu_killed_rank [layer]: ranks as processes, a GPU each; one is killed during its scans, or in a layer of linear
// attention. The other ranks must notice it in time although their kernels wait for it, must end their communicator,
// and create a new one without it. Exit status 77 with fewer than two GPUs.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "common/timeouts.h"
#include "gpu/support/attention_steps.h"
#include "gpu/support/count_gpus.h"
#include "gpu/support/prefix_sums.h"

using namespace seqpar::test;

namespace {

/// Set by the rank that is to be killed, when it has worked for a while: in memory that all processes share.
std::atomic<bool>* working = nullptr;

/// Instructions of the parent process (which never uses CUDA) to each rank.
struct Orders {
  seqparUniqueId first, second;
  int ranks;
};

seqparComm_t join(const seqparUniqueId& id, int ranks, int rank, int device) {
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.device = device;
  config.timeoutMs = kNoTimeoutMs;  // a death is noticed without one
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
  return comm;
}

void workFor(PrefixSums& sums, unsigned calls) {
  std::mt19937_64 random(7);
  for (unsigned i = 0; i < calls; ++i) {
    const DrawnScan scan(random);
    sums.enqueue(i, scan.elements, scan.algorithm, scan.reverse);
  }
}

void workFor(AttentionSteps& steps, unsigned calls) {
  steps.enqueue(calls);
}

/// Works until the communicator has failed.
template <class Work>
void workUntilFailure(seqparComm_t comm) {
  Work work(comm);
  seqparResult_t state = seqparSuccess;
  try {
    while (state == seqparSuccess) {
      workFor(work, 100);
      expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError", comm);
      work.check("before the failure");
    }
  } catch (const std::runtime_error&) {
    expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError", comm);
  }
  expect(state == seqparRemoteError, "the state is ", seqparGetErrorString(state), ", expected a remote error");
  // Kernels have given up, so the stream finishes.
  expectCuda(cudaStreamSynchronize(work.stream()), "cudaStreamSynchronize");
}

template <class Work>
int runRank(int rank, int victim, const Orders& orders) {
  if (requireGpus(2) < orders.ranks) return kSkipped;
  DeviceBackend device(1);
  backend() = &device;
  expectCuda(cudaSetDevice(rank), "cudaSetDevice");
  auto* const comm = join(orders.first, orders.ranks, rank, rank);
  if (rank == victim) {
    Work work(comm);
    for (;;) {  // until the parent kills it
      workFor(work, 50);
      work.check("the victim");
      *working = true;
    }
  }
  workUntilFailure<Work>(comm);
  std::printf("rank %d: %s\n", rank, seqparGetLastError(comm));
  expectSuccess(seqparCommAbort(comm), "seqparCommAbort");

  const int left = orders.ranks - 1;
  auto* const again = join(orders.second, left, rank < victim ? rank : rank - 1, rank);
  {
    Work work(again);
    workFor(work, 1000);
    work.check("the new communicator");
  }
  expectSuccess(seqparCommDestroy(again), "seqparCommDestroy");
  return 0;
}

struct Child {
  pid_t process = 0;
  int orders = -1;
};

Child start(int rank, int victim, bool layer) {
  std::array<int, 2> byteFifo{};
  expect(::pipe(byteFifo.data()) == 0, "pipe failed");
  const pid_t process = fork();
  expect(process >= 0, "fork failed");
  if (process > 0) {
    close(byteFifo[0]);
    return {process, byteFifo[1]};
  }
  close(byteFifo[1]);
  Orders orders{};
  int status = 1;
  if (read(byteFifo[0], &orders, sizeof(orders)) == static_cast<ssize_t>(sizeof(orders)) && orders.ranks > rank) {
    try {
      status = (layer ? runRank<AttentionSteps> : runRank<PrefixSums>)(rank, victim, orders);
    } catch (const std::exception& error) {
      std::printf("rank %d: %s\n", rank, error.what());
    }
  }
  std::fflush(stdout);
  _exit(status);
}

}  // namespace

int main(int count, char** words) {
  const bool layer = count > 1 && words[1] == std::string("layer");
  const int ranks = std::min(countGpus(), 8);
  if (ranks < 2) {
    std::printf("skipped: 2 GPUs needed, %d found\n", ranks);
    return kSkipped;
  }
  const int victim = ranks / 2;
  void* const shared = mmap(nullptr, sizeof(*working), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect(shared != MAP_FAILED, "mmap failed");
  working = new (shared) std::atomic<bool>(false);
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) children.push_back(start(rank, victim, layer));
  Orders orders{};
  orders.ranks = ranks;
  expectSuccess(seqparGetUniqueId(&orders.first), "seqparGetUniqueId");
  expectSuccess(seqparGetUniqueId(&orders.second), "seqparGetUniqueId");
  for (const auto& child : children) {
    expect(write(child.orders, &orders, sizeof(orders)) == static_cast<ssize_t>(sizeof(orders)), "write failed");
  }
  const pid_t doomed = children[static_cast<std::size_t>(victim)].process;
  siginfo_t ended{};
  while (!*working && ended.si_pid == 0) {
    expect(waitid(P_PID, static_cast<id_t>(doomed), &ended, WEXITED | WNOHANG | WNOWAIT) == 0, "waitid failed");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(doomed, SIGKILL);

  bool fine = true;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<std::size_t>(rank)].process, &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const bool good = rank == victim ? killed : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good) std::printf("rank %d ended with status %d\n", rank, status);
    fine = fine && good;
  }
  std::printf(fine ? "all right\n" : "failed\n");
  return fine ? 0 : 1;
}
