// gpu_endurance [--calls N] [--plans N] [--seconds S] [--seed S] [--log FILE]: a long run without a fault on all GPUs,
// a thread each: small scans, gathers and reductions, one by one and in graphs, N calls in all, every result checked on
// the device, and N plans of linear attention, created, run once and destroyed. Memory of the host and of the GPU,
// descriptors and threads must not grow after the first tenth. --log: a line of JSON for each sample. Exit status 77
// with fewer than two GPUs.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "common/draw_seed.h"
#include "common/process_usage.h"
#include "gpu/support/attention_steps.h"
#include "gpu/support/prefix_sums.h"
#include "seqpar/exchange.h"

using namespace seqpar::test;

namespace {

constexpr int kSamples = 20;
constexpr long kCallsBetweenChecks = 500;
constexpr long kCallsOfGraph = 10;
constexpr long kMostGrowthKib = 24 << 10, kMostGpuGrowthMib = 64;
constexpr size_t kMost = 2048;  ///< elements of a message

struct Options {
  long calls = 20000, plans = 20;
  double seconds = 1e9;
  uint64_t seed = 0;
  const char* log = nullptr;
};

struct Usage : ProcessUsage {
  long gpuMib = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of the process and of the current GPU.
Usage usage() {
  size_t free = 0, total = 0;
  expectCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {processUsage(), static_cast<long>((total - free) >> 20)};
}

/// All-gathers and reduce-scatters with known results.
class Exchanges {
 public:
  explicit Exchanges(seqparComm_t comm) : comm_(comm) {
    expectSuccess(seqparCommCount(comm, &ranks_), "seqparCommCount");
    expectSuccess(seqparCommUserRank(comm, &rank_), "seqparCommUserRank");
    whole_ = allocate(kMost * static_cast<size_t>(ranks_));
    mine_ = allocate(kMost);
    reduced_ = allocate(kMost);
    ones_ = allocate(kMost * static_cast<size_t>(ranks_));
    wrong_ = reinterpret_cast<unsigned*>(allocate(1));
    launchFill(mine_, kMost, static_cast<float>(rank_ + 1), stream());
    launchFill(ones_, kMost * static_cast<size_t>(ranks_), 1, stream());
    expectCuda(cudaMemsetAsync(wrong_, 0, sizeof(unsigned), stream()), "cudaMemsetAsync");
    stream_.synchronize();
  }
  Exchanges(const Exchanges&) = delete;
  Exchanges& operator=(const Exchanges&) = delete;
  ~Exchanges() {
    cudaStreamSynchronize(stream());
    for (auto* memory : memory_) seqparMemFree(memory);
  }

  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.get()); }

  void gather(size_t elements) {
    const auto shards = shardsOf(elements);
    expectSuccess(seqparAllGather(mine_, whole_, &shards, comm_, stream()), "seqparAllGather", comm_);
    for (int rank = 0; rank < ranks_; ++rank) {
      const size_t from = elements * static_cast<size_t>(rank);
      launchCompare(whole_ + from, elements, static_cast<float>(rank + 1), wrong_, stream());
    }
  }

  void reduce(size_t elements) {
    const auto shards = shardsOf(elements);
    expectSuccess(seqparReduceScatter(ones_, reduced_, &shards, comm_, stream()), "seqparReduceScatter", comm_);
    launchCompare(reduced_, elements, static_cast<float>(ranks_), wrong_, stream());
  }

  void check() {
    stream_.synchronize();
    seqparResult_t state = seqparSuccess;
    expectSuccess(seqparCommGetAsyncError(comm_, &state), "seqparCommGetAsyncError", comm_);
    expect(state == seqparSuccess, seqparGetLastError(comm_));
    unsigned wrong = 0;
    expectCuda(cudaMemcpyAsync(&wrong, wrong_, sizeof(wrong), cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
    stream_.synchronize();
    expect(wrong == 0, wrong, " elements are wrong on rank ", rank_);
  }

 private:
  static seqparShards_t shardsOf(size_t elements) {
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.outer = shards.tokens = 1;
    shards.inner = static_cast<int64_t>(elements);
    return shards;
  }
  float* allocate(size_t count) {
    void* memory = nullptr;
    expectSuccess(seqparMemAlloc(&memory, count * sizeof(float), comm_), "seqparMemAlloc", comm_);
    memory_.push_back(memory);
    return static_cast<float*>(memory);
  }

  seqparComm_t comm_;
  int ranks_ = 0, rank_ = 0;
  Stream stream_;
  std::vector<void*> memory_;
  float *whole_ = nullptr, *mine_ = nullptr, *reduced_ = nullptr, *ones_ = nullptr;
  unsigned* wrong_ = nullptr;
};

struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const noexcept { cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<CUgraphExec_st, DestroyGraph>;

/// kCallsOfGraph scans.
Graph capture(PrefixSums& sums) {
  cudaGraph_t graph = nullptr;
  expectCuda(cudaStreamBeginCapture(sums.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (unsigned i = 0; i < kCallsOfGraph; ++i) sums.enqueue(i, 1 + i * 200, seqparScanAuto, i % 2 == 1);
  expectCuda(cudaStreamEndCapture(sums.stream(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  Graph owned(ready);
  expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return owned;
}

/// One rank's run.
class Run {
 public:
  Run(const Options& options, seqparComm_t comm, std::atomic<bool>& isOver)
      : options_(options), comm_(comm), isOver_(isOver), random_(options.seed), sums_(comm), exchanges_(comm) {
    expectSuccess(seqparCommUserRank(comm, &rank_), "seqparCommUserRank");
    graph_ = capture(sums_);
  }

  /// "" or what grew.
  std::string run() {
    const double begin = now();
    const long every = std::max<long>(options_.calls / kSamples, 1);
    long checked = 0, plans = 0;
    for (long next = every; calls_ < options_.calls && !ends_;) {
      call();
      if (calls_ - checked >= kCallsBetweenChecks) {
        sums_.check("scans");
        exchanges_.check();
        checked = calls_;
      }
      for (; plans < calls_ * options_.plans / options_.calls; ++plans) plan();
      if (calls_ < next) continue;
      next += every;
      sample(now() - begin, plans);
    }
    sums_.check("scans");
    exchanges_.check();
    return grown();
  }

 private:
  void call() {
    const size_t elements = 1 + random_() % kMost;
    switch (random_() % 8) {
      case 0:
        expectCuda(cudaGraphLaunch(graph_.get(), sums_.stream()), "cudaGraphLaunch");
        calls_ += kCallsOfGraph;
        return;
      case 1:
      case 2:
        exchanges_.gather(elements);
        break;
      case 3:
      case 4:
        exchanges_.reduce(elements);
        break;
      default: {
        const DrawnScan scan(random_);
        sums_.enqueue(static_cast<unsigned>(calls_), elements, scan.algorithm, scan.reverse);
      }
    }
    ++calls_;
  }

  void plan() {
    AttentionSteps layer(comm_);
    layer.enqueue(1);
    layer.check("a layer");
  }

  void sample(double seconds, long plans) {
    sums_.check("scans");
    exchanges_.check();
    if (rank_ == 0 && seconds > options_.seconds) isOver_ = true;
    expectSuccess(seqparCommBarrier(comm_), "seqparCommBarrier", comm_);
    ends_ = isOver_;
    samples_.push_back(usage());
    expectSuccess(seqparCommBarrier(comm_), "seqparCommBarrier", comm_);
    const Usage& last = samples_.back();
    std::ostringstream line;
    line << R"({"rank": )" << rank_ << R"(, "calls": )" << calls_ << R"(, "plans": )" << plans << R"(, "seconds": )"
         << seconds << R"(, "kib": )" << last.residentKib << R"(, "gpu_mib": )" << last.gpuMib << R"(, "descriptors": )"
         << last.descriptors << R"(, "threads": )" << last.threads << "}\n";
    if (options_.log != nullptr) std::ofstream(options_.log, std::ios::app) << line.str();
    if (rank_ == 0) std::printf("%s", line.str().c_str());
  }

  std::string grown() const {
    if (samples_.size() < 4) return "";
    const Usage& first = samples_[samples_.size() / 10 + 1];
    const Usage& last = samples_.back();
    std::string why;
    if (last.residentKib > first.residentKib + kMostGrowthKib) why += "memory grew; ";
    if (last.gpuMib > first.gpuMib + kMostGpuGrowthMib) why += "the GPU's memory grew; ";
    if (last.descriptors > first.descriptors) why += "descriptors grew; ";
    if (last.threads > first.threads) why += "threads grew; ";
    return why;
  }

  const Options& options_;
  seqparComm_t comm_;
  std::atomic<bool>& isOver_;
  std::mt19937_64 random_;
  PrefixSums sums_;
  Exchanges exchanges_;
  Graph graph_;
  int rank_ = 0;
  long calls_ = 0;
  bool ends_ = false;
  std::vector<Usage> samples_;
};

int run(const Options& options, int gpus) {
  seqparUniqueId id{};
  expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
  std::atomic<bool> isOver{false};
  const auto errors = onThreads(gpus, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.device = rank;
    config.timeoutMs = patienceMs(30000);
    expectCuda(cudaSetDevice(rank), "cudaSetDevice");
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, gpus, id, rank, &config), "seqparCommInitRankConfig");
    try {
      const std::string why = Run(options, comm, isOver).run();
      expect(why.empty(), why);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  std::printf("%s", errors.empty() ? "all right\n" : errors.c_str());
  return errors.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.seed = drawSeed();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--calls") options.calls = std::atol(argv[i + 1]);
    if (option == "--plans") options.plans = std::atol(argv[i + 1]);
    if (option == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (option == "--seed") options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--log") options.log = argv[i + 1];
  }
  const int gpus = requireGpus(2);
  DeviceBackend device(1, false, size_t{1} << 20);
  backend() = &device;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("gpu_endurance --calls %ld --plans %ld --seed %llu on %d GPUs\n", options.calls, options.plans,
              static_cast<unsigned long long>(options.seed), gpus);
  try {
    return run(options, gpus);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
