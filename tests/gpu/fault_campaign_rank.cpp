#include "gpu/fault_campaign_rank.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/timeouts.h"
#include "gpu/support/attention_steps.h"
#include "gpu/support/prefix_sums.h"
#include "seqpar/shrink.h"

namespace seqpar::test {
namespace {

constexpr unsigned kCallsAgain = 30;  ///< on the last communicator

/// Takes what is left of the device's memory.
class Hog {
 public:
  Hog() { take(); }
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;
  ~Hog() {
    for (void* memory : memory_) cudaFree(memory);
  }

  void take() {
    for (size_t bytes = size_t{1} << 38; bytes >= size_t{1} << 16;) {
      void* memory = nullptr;
      if (cudaMalloc(&memory, bytes) == cudaSuccess) {
        memory_.push_back(memory);
      } else {
        (void)cudaGetLastError();
        bytes /= 2;
      }
    }
  }

 private:
  std::vector<void*> memory_;
};

struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const noexcept { cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<CUgraphExec_st, DestroyGraph>;

/// One rank of a job.
class Rank {
 public:
  Rank(const Options& options, const JobPlan& plan, JobState& shared, int rank)
      : options_(options), plan_(plan), shared_(shared), rank_(rank) {}

  void run() {
    if (rank_ == 0) {
      expectSuccess(seqparGetUniqueId(&shared_.id), "seqparGetUniqueId");
      shared_.hasId = true;
    }
    while (!shared_.hasId) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::string host = "host" + std::to_string(rank_);
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.device = rank_ % options_.gpus;
    config.timeoutMs = plan_.timed ? options_.timeoutMs : kNoTimeoutMs;
    if (options_.nccl) config.hostId = host.c_str();
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, plan_.ranks, shared_.id, rank_, &config), "seqparCommInitRankConfig");
    comms_.push_back(comm);
    for (step_ = 0; step_ < plan_.steps.size(); ++step_) {
      workUntilFailure();
      if (left_) return abortAll();
      if (!shrink()) return;
    }
    computeAgain();
    expectSuccess(seqparCommDestroy(comms_.back()), "seqparCommDestroy", comms_.back());
    comms_.pop_back();
    while (!shared_.finish) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    abortAll();
  }

 private:
  void abortAll() {
    for (auto* comm : comms_) seqparCommAbort(comm);
    comms_.clear();
  }

  bool isVictim() const { return plan_.steps[step_].victim == rank_; }

  /// Calls, and checks their results: scans and layers, the scans also by a graph.
  void work(PrefixSums& sums, std::optional<AttentionSteps>& layer, const Graph& graph, std::mt19937_64& random) {
    const auto drawn = random() % 8;
    if (drawn == 0) {
      layer.reset();
      if (hog_) hog_->take();        // what the earlier layer had
      layer.emplace(comms_.back());  // allocates windows
      layer->enqueue(2);
      layer->check("a layer");
    } else if (drawn == 1 && layer) {
      layer->enqueue(5);
      layer->check("a layer");
    } else if (drawn < 4 && graph) {
      for (int i = 0; i < 10; ++i) expectCuda(cudaGraphLaunch(graph.get(), sums.stream()), "cudaGraphLaunch");
    } else {
      for (unsigned i = 0; i < 20; ++i) {
        const DrawnScan scan(random);
        const bool isAbsent = options_.nccl && scan.algorithm == seqparScanDoubling;
        sums.enqueue(i, scan.elements, isAbsent ? seqparScanAuto : scan.algorithm, scan.reverse);
      }
    }
    sums.check("scans");
  }

  /// None if ranks share a GPU, where captures are refused.
  Graph capture(PrefixSums& sums) const {
    if (options_.shares()) return nullptr;
    cudaGraph_t graph = nullptr;
    expectCuda(cudaStreamBeginCapture(sums.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (unsigned i = 0; i < 3; ++i) sums.enqueue(i, 5000, seqparScanAuto, i == 1);
    expectCuda(cudaStreamEndCapture(sums.stream(), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t ready = nullptr;
    expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    Graph owned(ready);
    expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return owned;
  }

  std::mt19937_64 randomOfStep() const { return std::mt19937_64(plan_.seed + 1000 * (step_ + 1)); }

  void workUntilFailure() {
    auto* const comm = comms_.back();
    Outcome& outcome = shared_.outcomes[step_][static_cast<size_t>(rank_)];
    seqparResult_t state = seqparSuccess;
    std::string caught;
    try {
      auto random = randomOfStep();
      PrefixSums sums(comm);
      std::optional<AttentionSteps> layer;
      const Graph graph = capture(sums);
      try {
        for (bool first = true;; first = false) {
          if (!first) cause(sums);
          if (left_) return;
          work(sums, layer, graph, random);
          if (first) ++shared_.working[step_];
        }
      } catch (const std::runtime_error&) {
        endIfAlone(comm);  // before the destructors wait for kernels
        throw;
      }
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    hog_.reset();
    outcome.failedAt = now();
    expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError", comm);
    const std::string text = seqparGetLastError(comm);
    std::snprintf(outcome.text, sizeof(outcome.text), "%.290s", text.c_str());
    outcome.failed = true;
    if (caught.find("wrong") != std::string::npos || caught.find("other bits") != std::string::npos) {
      ++shared_.wrong[static_cast<size_t>(rank_)];
      throw std::runtime_error(caught);
    }
    expect(state == seqparRemoteError || isVictim(), "state ", seqparGetErrorString(state), ": ", caught);
  }

  /// The other ranks know nothing of a failed allocation of the caller.
  void endIfAlone(seqparComm_t comm) const {
    seqparResult_t state = seqparSuccess;
    expectSuccess(seqparCommGetAsyncError(comm, &state), "seqparCommGetAsyncError", comm);
    if (isVictim() && state == seqparSuccess) expectSuccess(seqparCommRevoke(comm), "seqparCommRevoke", comm);
  }

  /// Causes the fault that the parent process orders.
  void cause(PrefixSums& sums) {
    const int order = shared_.order[static_cast<size_t>(rank_)].exchange(0);
    if (order == 0) return;
    switch (static_cast<Fault>(order - 1)) {
      case Fault::Leave:
        expectSuccess(seqparCommAbort(comms_.back()), "seqparCommAbort");
        left_ = true;
        return;
      case Fault::Revoke:
        expectSuccess(seqparCommRevoke(comms_.back()), "seqparCommRevoke", comms_.back());
        return;
      case Fault::Memory:
        hog_.emplace();
        return;
      default: {
        void* memory = nullptr;
        expectCuda(cudaMalloc(&memory, 8), "cudaMalloc");
        const uint64_t ns = uint64_t{4000000} * static_cast<uint64_t>(options_.timeoutMs);
        expectCuda(launchLateCopy(memory, static_cast<char*>(memory) + 4, 4, ns, sums.stream()), "launchLateCopy");
      }
    }
  }

  bool shrink() {
    Outcome& outcome = shared_.outcomes[step_][static_cast<size_t>(rank_)];
    const double begin = now();
    seqparComm_t next = nullptr;
    const auto result = seqparCommShrink(comms_.back(), nullptr, &next);
    outcome.shrinkSeconds = now() - begin;
    if (isVictim() && JobPlan::excludes(plan_.steps[step_].fault)) {
      const std::string text = seqparGetLastError(comms_.back());
      std::snprintf(outcome.text, sizeof(outcome.text), "%.290s", text.c_str());
      if (result == seqparSuccess) seqparCommAbort(next);
      abortAll();
      return false;
    }
    expectSuccess(result, "seqparCommShrink", comms_.back());
    seqparCommCount(next, &outcome.members);
    outcome.shrunk = true;
    if (!plan_.keeps) {
      seqparCommDestroy(comms_.back());
      comms_.clear();
    }
    comms_.push_back(next);
    return true;
  }

  void computeAgain() {
    auto random = randomOfStep();
    PrefixSums sums(comms_.back());
    std::optional<AttentionSteps> layer;
    const Graph graph = capture(sums);
    for (unsigned i = 0; i < kCallsAgain; ++i) {
      work(sums, layer, graph, random);
      if (i == 0) ++shared_.working[step_];
    }
  }

  const Options& options_;
  const JobPlan& plan_;
  JobState& shared_;
  int rank_;
  bool left_ = false;  ///< as ordered
  size_t step_ = 0;
  std::optional<Hog> hog_;
  std::vector<seqparComm_t> comms_;
};

}  // namespace

void runRank(const Options& options, const JobPlan& plan, JobState& shared, int rank) {
  Rank(options, plan, shared, rank).run();
}

}  // namespace seqpar::test
