// All-Scan over NCCL. With one GPU: up to 8 ranks on it, with copies instead of NCCL. With two: NCCL itself, in one
// node and between two nodes, which are processes of this program. Exit status 77 without a GPU.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/draw_seed.h"
#include "support/memory_nccl.h"
#include "support/nccl_ranks.h"
#include "support/nccl_scan_cases.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// Plays no part.
std::chrono::milliseconds timeout() {
  return patience(std::chrono::seconds(60));
}
constexpr int kCases = 96;  // every operator with every algorithm four times

int failures = 0;

void report(const std::string& what, const std::string& problem) {
  std::printf("%s: %s\n", what.c_str(), problem.empty() ? "ok" : problem.c_str());
  std::fflush(stdout);
  if (!problem.empty()) ++failures;
}

/// Nodes of `ranks` ranks, in runs of at most `most`.
std::vector<int> nodesOf(int ranks, int most) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / most);
  return nodes;
}

void tryWithoutNccl(int ranks, int perNode, std::uint64_t seed, int cases) {
  MemoryNcclBoard board;
  report(concat(ranks, " ranks by copies, nodes of ", perNode, ", seed ", seed), onThreads(ranks, [&](int rank) {
           expectCuda(cudaSetDevice(0), "cudaSetDevice");
           MemoryNccl nccl(board, rank, ranks, 0);
           NcclOnlyGroup group(nccl);
           runNcclScans(group, nodesOf(ranks, perNode), seed, cases,
                        [&nccl](cudaStream_t stream) { nccl.wait(stream); });
         }));
}

/// The cost model's estimate for an algorithm.
double estimateUs(const std::vector<seqparScanEstimate_t>& all, int algorithm) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [algorithm](const auto& estimate) { return estimate.algorithm == algorithm; });
  return found == all.end() ? -1 : found->modelUs;
}

void expectEstimates() {
  ScanProblem problem;
  problem.heads = 32;
  problem.dk = problem.dv = 128;
  const NcclLinks links{{1e-5, 1e-11}, {1e-4, 1e-9}};
  const double never = std::numeric_limits<double>::infinity();
  for (const auto& nodes : {nodesOf(1, 1), nodesOf(8, 8), nodesOf(8, 4), std::vector<int>{0, 1, 0, 1}}) {
    const auto all = ncclScanEstimates(problem, nodes, links, 0);
    expect(all.size() == SEQPAR_SCAN_ALGORITHMS, all.size(), " estimates");
    expect(std::is_sorted(all.begin(), all.end(), [](auto& a, auto& b) { return a.modelUs < b.modelUs; }),
           "the fastest comes first");
    expect(estimateUs(all, seqparScanDoubling) == never, "DOUBLING is not done over NCCL");
    const bool interleaved = nodes.size() == 4;
    expect((estimateUs(all, seqparScanHier) == never) == interleaved, "HIER needs neighbors on a node");
    for (const auto& each : ncclScanEstimates(problem, nodes, links, 5)) {
      expect(each.blocks == 5, "the number of blocks that was asked for, not ", each.blocks);
    }
  }
  expect(ncclScanEstimates(problem, nodesOf(1, 1), links, 0).front().modelUs == 0, "a single rank waits for nobody");
  const auto twoNodes = ncclScanEstimates(problem, nodesOf(8, 4), links, 0);
  // 2 MiB: everything crosses the slow network at least once, HIER's shards on four rails at a time.
  expect(twoNodes.front().algorithm == seqparScanHier, "HIER is the fastest between nodes of four");
  expect(estimateUs(twoNodes, seqparScanChain) < estimateUs(twoNodes, seqparScanLasp1), "blocks make a chain faster");
}

void tryEstimates() {
  std::string problem;
  try {
    expectEstimates();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  report("estimates", problem);
}

/// One capture of a scan, replayed; every replay starts from the same inputs, and outputs are not in place.
void replayScan(DeviceGroup& group, seqparScanAlgorithm_t algorithm, cudaStreamCaptureMode mode) {
  NcclScanCase given;
  ScanSpec spec;
  spec.size = group.size();
  spec.op = seqparScanDiag;
  spec.heads = 4;
  spec.dk = spec.dv = 64;
  spec.flags = true;
  given.numbers = Numbers::Exact;
  given.choice = {algorithm, 3, 0};
  given.seed = 5;
  given.nodes = nodesOf(group.size(), group.size());
  for (int position = 0; position < spec.size; ++position) given.order.push_back(position);
  given.scan = makeScanCase(spec, given.numbers, given.seed);
  DeviceBuffers buffers(given.scan, group.rank(), Outputs::Both, group.device(), 0);
  const auto stream = seqpar::makeStream();
  expectCuda(cudaStreamBeginCapture(stream.get(), mode), "cudaStreamBeginCapture");
  ncclScan(group, buffers.problem(), given.order, given.nodes, scanAlgorithm(given.choice.algorithm),
           given.choice.blocks, stream.get());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(graph);
  const auto reference = referenceScan(given.scan)[static_cast<std::size_t>(group.rank())];
  for (int i = 0; i < 5; ++i) {
    const std::size_t bytes = spec.elements() * sizeof(float);
    expectCuda(cudaMemsetAsync(buffers.problem().prefix, 0xff, bytes, stream.get()), "cudaMemsetAsync");
    expectCuda(cudaMemsetAsync(buffers.problem().total, 0xff, bytes, stream.get()), "cudaMemsetAsync");
    expectCuda(cudaGraphLaunch(ready, stream.get()), "cudaGraphLaunch");
    group.nccl()->wait(stream.get());
    compareScan("a replay's prefix", buffers.prefixValues(), reference.prefix, given);
    compareScan("a replay's total", buffers.totalValues(), reference.total, given);
  }
  cudaGraphExecDestroy(ready);
}

void tryNccl(int ranks, std::uint64_t seed) {
  report(concat(ranks, " ranks over NCCL, seed ", seed), onNcclRanks(ranks, timeout(), [&](NcclRank& mine) {
           NcclOnlyGroup group(*mine.nccl);
           runNcclScans(group, nodesOf(ranks, ranks), seed, kCases,
                        [&mine](cudaStream_t stream) { mine.nccl->wait(stream); });
           runNcclScans(group, nodesOf(ranks, 1), seed + 1, kCases,
                        [&mine](cudaStream_t stream) { mine.nccl->wait(stream); });
           // A capture in global mode would conflict with other threads' calls.
           for (const auto algorithm : ncclAlgorithms()) replayScan(group, algorithm, cudaStreamCaptureModeThreadLocal);
         }));
}

/// One rank per process, each on a separate node.
int runProcess() {
  (void)requireNcclRanks();
  const int rank = std::atoi(std::getenv("RANK"));
  expectCuda(cudaSetDevice(rank), "cudaSetDevice");
  const EnvironmentJoin joined = joinFromEnvironment({timeout(), ""});
  Health health;
  const auto nccl = NcclComm::create(*joined.allgather, rank, timeout(), health);
  const Watchdog watch(
      health, [&nccl] { nccl->poll(); }, [&nccl] { nccl->abort(); });
  NcclOnlyGroup group(*nccl);
  const std::vector<int> nodes = nodesOf(joined.nranks, 1);
  const NcclLinks links = measureNcclLinks(*nccl, *joined.allgather, nodes);
  if (rank == 0) {
    std::printf("between nodes: %.1f us a step, %.2f GB/s\n", links.network.alpha * 1e6,
                1e-9 / links.network.secondsPerByte);
  }
  runNcclScans(group, nodes, 77, kCases, [&nccl](cudaStream_t stream) { nccl->wait(stream); });
  for (const auto algorithm : ncclAlgorithms()) replayScan(group, algorithm, cudaStreamCaptureModeGlobal);
  std::vector<char> all(static_cast<std::size_t>(joined.nranks));
  joined.allgather->gatherValues(char{0}, std::span(all));
  return 0;
}

/// Starts this program once for each of two nodes. Returns the exit status.
int tryNodes() {
  const std::string cursor = std::to_string(20000 + getpid() % 20000);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", "2", 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", cursor.c_str(), 1);
      setenv("NCCL_HOSTID", concat("node", rank).c_str(), 1);
      execl("/proc/self/exe", "nccl_scan", "process", nullptr);
      _exit(127);
    }
    children.push_back(child);
  }
  std::string problem;
  int skipped = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) {
      ++skipped;
    } else if (status != 0) {
      problem += concat("a process ended with status ", status, "; ");
    }
  }
  if (skipped == 2) return kSkipped;
  report("2 nodes, processes", problem);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  limitSeconds(240);
  if (argc > 1 && std::strcmp(argv[1], "process") == 0) {
    try {
      return runProcess();
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
      return 1;
    }
  }
  if (argc > 1 && std::strcmp(argv[1], "nodes") == 0) {
    // Before this process uses CUDA, which does not survive a fork; the children report missing GPUs.
    return tryNodes();
  }
  tryEstimates();
  if (failures > 0) return 1;
  const int gpus = requireGpus(1);
  const std::uint64_t seed = seqpar::test::drawSeed();
  if (argc > 2 && std::strcmp(argv[1], "copies") == 0) {
    // Few cases, for tools that slow kernels down.
    tryWithoutNccl(5, 2, seed, std::atoi(argv[2]));
    return failures == 0 ? 0 : 1;
  }
  for (const int ranks : {1, 2, 3, 5, 8}) tryWithoutNccl(ranks, ranks, seed, kCases);
  for (const int perNode : {1, 2, 3}) tryWithoutNccl(7, perNode, seed + 1, kCases);
  if (gpus < 2 || ncclReport().rfind("NCCL", 0) != 0) {
    std::printf("not run: NCCL between two GPUs (%d GPUs, %s)\n", gpus, ncclReport().c_str());
  } else {
    tryNccl(gpus, seed);
  }
  return failures == 0 ? 0 : 1;
}
