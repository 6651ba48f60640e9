// gpu_softmax_attention RANKS [graph] [Catch's options]: every algorithm of softmax attention on GPU communicators
// whose ranks are threads of this process, against the definition in fp64; with `graph` the calls are captured and
// replayed. With more ranks than GPUs several share one. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <set>

#include "gpu/support/device_backend.h"
#include "unit/attn/softmax_features.h"
#include "unit/attn/softmax_ranks.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)
using seqpar::test::expectCuda;

int gpus = 0, ranks = 1;
bool graphs = false;

/// A rank's device memory and stream, made once: with several ranks a GPU nothing may wait for the device in between.
class RankDevice {
 public:
  explicit RankDevice(int device) : device_(device) {
    expectCuda(cudaSetDevice(device), "cudaSetDevice");
    void* memory = nullptr;
    expectCuda(cudaMalloc(&memory, kBytes), "cudaMalloc");
    base_ = static_cast<char*>(memory);
    expectCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }

  void use() { expectCuda(cudaSetDevice(device_), "cudaSetDevice"); }
  void* allocate(size_t bytes) {
    constexpr size_t kAlignment = 256;
    char* const memory = base_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > kBytes) throw std::runtime_error("the test's device memory is too small");
    return memory;
  }
  void reset() { used_ = 0; }
  void copy(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    expectCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
    synchronize();
  }
  void synchronize() { expectCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  cudaStream_t stream() const { return stream_; }

 private:
  static constexpr size_t kBytes = size_t{1} << 29;
  int device_;
  char* base_ = nullptr;
  size_t used_ = 0;
  cudaStream_t stream_ = nullptr;
};

std::string replayed(RankDevice& device, const std::function<std::string(void*)>& calls,
                     const std::function<void()>& meet) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const auto said = calls(device.stream());
  expectCuda(cudaStreamEndCapture(device.stream(), &graph), "cudaStreamEndCapture");
  if (!said.empty()) return said;
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  meet();
  for (int i = 0; i < 2; ++i) expectCuda(cudaGraphLaunch(ready, device.stream()), "cudaGraphLaunch");
  device.synchronize();
  meet();
  expectCuda(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return "";
}

/// The ranks of a test case.
class Ranks {
 public:
  Ranks() : meeting_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) devices_.push_back(std::make_unique<RankDevice>(rank % gpus));
    group_ = std::make_unique<RankThreads>(ranks, [](int rank) {
      seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
      config.device = rank % gpus;
      config.timeoutMs = seqpar::test::patienceMs(20000);
      const int sharing = (ranks + gpus - 1) / gpus;
      config.ctas = sharing > 1 ? 64 / sharing : SEQPAR_CONFIG_UNDEF_INT;
      return config;
    });
    const auto at = [this](int rank) -> RankDevice& { return *devices_[static_cast<size_t>(rank)]; };
    placement_.allocate = [=](int rank, size_t bytes) { return at(rank).allocate(bytes); };
    placement_.copy = [=](int rank, void* to, const void* from, size_t bytes) {
      at(rank).use();
      at(rank).copy(to, from, bytes);
    };
    placement_.meet = [this] { meeting_.meet(); };
    placement_.run = [=, this](int rank, const std::function<std::string(void*)>& calls) {
      at(rank).use();
      if (graphs) return replayed(at(rank), calls, placement_.meet);
      auto said = calls(at(rank).stream());
      at(rank).synchronize();
      return said;
    };
  }

  const RankThreads& group() const { return *group_; }
  const Placement& placement() {
    for (auto& device : devices_) device->reset();
    return placement_;
  }

 private:
  seqpar::test::DeviceBackend meeting_;
  std::vector<std::unique_ptr<RankDevice>> devices_;
  std::unique_ptr<RankThreads> group_;
  Placement placement_;
};

TEST_CASE("softmax attention on GPUs: every feature, small") {
  Ranks all;
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || (row.id == seqparAttnLocal && ranks > 1)) continue;
    for (const auto& feature : features()) {
      SoftmaxSpec spec = drawSpec(random, ranks);
      const std::string name = feature.name;
      if (name == "lengths") spec.tokensOfRanks.resize(static_cast<size_t>(ranks));
      feature.apply(spec, random);
      spec.algorithm = row.id;
      if (!refusalOf(row, spec, all.group()[0]).empty()) continue;
      RunOptions options;
      options.ownWorkspace = random() % 2 == 0;
      options.placement = &all.placement();
      CAPTURE(seed, ranks, row.name, name, spec.text());
      CHECK(runCase(SoftmaxCase(spec, random()), &all.group(), options) == "");
    }
  }
}

/// Problems that cuDNN gets, at least on some ranks.
std::vector<std::pair<const char*, SoftmaxSpec>> largeSpecs() {
  std::vector<std::pair<const char*, SoftmaxSpec>> all;
  SoftmaxSpec base;
  base.tokens = 256 * std::max(2, ranks);
  base.heads = base.kvHeads = 2;
  base.headDim = base.valueDim = 64;
  base.type = seqparBfloat16;
  const auto add = [&](const char* name, const std::function<void(SoftmaxSpec&)>& change) {
    all.emplace_back(name, base);
    change(all.back().second);
  };
  add("full", [](SoftmaxSpec&) {});
  add("causal, batch 2", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.batch = 2;
  });
  add("odd length, causal", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.tokens -= 27;
    s.type = seqparFloat16;
  });
  add("columns of 64 modulo 128", [](SoftmaxSpec& s) { s.tokens += 64 * ranks; });
  add("window", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.windowLeft = 200;
  });
  add("window to both sides", [](SoftmaxSpec& s) {
    s.windowLeft = 180;
    s.windowRight = 77;
  });
  add("packed", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.bounds = {0, 1, 130, 300, 302, 439};
    for (int64_t at = 439 + 64; at < s.tokens; at += 97) s.bounds.push_back(at);
    s.bounds.push_back(s.tokens);
  });
  add("packed, full, gqa", [](SoftmaxSpec& s) {
    s.heads = 4;
    s.bounds = {0, 137, 300, 310, 400, 500, s.tokens};
  });
  add("gqa, causal, d 128", [](SoftmaxSpec& s) {
    s.heads = 4;
    s.mask = seqparAttnCausal;
    s.headDim = s.valueDim = 128;
  });
  add("sinks, heads first", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.sinks = true;
    s.headsFirst = true;
  });
  add("cross", [](SoftmaxSpec& s) {
    s.kvTokens = s.tokens + 300;
    s.mask = seqparAttnCausal;
  });
  add("d 256", [](SoftmaxSpec& s) { s.headDim = s.valueDim = 256; });
  return all;
}

TEST_CASE("softmax attention on GPUs: every algorithm, large") {
  Ranks all;
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (const auto& [name, base] : largeSpecs()) {
    std::unique_ptr<SoftmaxCase> problem;
    std::unique_ptr<SoftmaxAnswer> answer;
    for (const auto& row : seqpar::attn::algorithms()) {
      SoftmaxSpec spec = base;
      spec.algorithm = row.id;
      if (!row.softmax || (row.id == seqparAttnLocal && ranks > 1)) continue;
      if (!refusalOf(row, spec, all.group()[0]).empty()) continue;
      if (!problem) {
        problem = std::make_unique<SoftmaxCase>(spec, random());
        answer = std::make_unique<SoftmaxAnswer>(*problem);
      }
      problem->spec = spec;
      RunOptions options;
      options.rounds = 2;
      options.placement = &all.placement();
      CAPTURE(seed, ranks, row.name, name, spec.text());
      CHECK(runCase(*problem, &all.group(), options, answer.get()) == "");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  gpus = seqpar::test::requireGpus(1);
  std::vector<char*> rest{argv[0]};
  for (int i = 1; i < argc; ++i) {
    if (i == 1) {
      ranks = std::atoi(argv[i]);
    } else if (std::string(argv[i]) == "graph") {
      graphs = true;
    } else {
      rest.push_back(argv[i]);
    }
  }
  if (ranks < 1) {
    std::printf("usage: gpu_softmax_attention RANKS [graph] [Catch's options]\n");
    return 2;
  }
  std::printf("%d ranks on %d GPUs%s\n", ranks, gpus, graphs ? ", graphs" : "");
  return Catch::Session().run(static_cast<int>(rest.size()), rest.data());
}
