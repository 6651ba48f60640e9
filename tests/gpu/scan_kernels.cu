// The element-wise All-Scan kernels: every algorithm against the definition, on all GPUs there are and with several
// ranks on one. Exit status 77: no GPU.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/convert.h"
#include "gpu_peers.h"
#include "reference_scan.h"
#include "scan/peers/backend.h"
#include "scan_case.h"
#include "scan_rows.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr Outputs kOutputs[] = {Outputs::Both, Outputs::PrefixOnly, Outputs::TotalOnly, Outputs::PrefixInPlace,
                                Outputs::TotalInPlace};

/// Memory of the current device with what host memory holds, from `skew` bytes behind an aligned address.
class Mirror {
 public:
  Mirror(const void* host, std::size_t bytes, std::size_t skew) : bytes_(host == nullptr ? 0 : bytes), skew_(skew) {
    if (host == nullptr) return;
    memory_ = allocateDevice(bytes + skew + 16);
    checkCuda(cudaMemcpy(data(), host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::byte* data() const { return memory_ ? memory_.get() + skew_ : nullptr; }
  void back(void* host) const { checkCuda(cudaMemcpy(host, data(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy"); }

 private:
  DeviceMemory memory_;
  std::size_t bytes_, skew_;
};

/// One rank's part of one scan.
struct RankRun {
  ScanBuffers host;
  Mirror state, transition, initial, prefix, total;

  RankRun(const ScanCase& scanCase, int rank, Outputs outputs, std::size_t skew)
      : host(scanCase, rank, outputs),
        state(host.state(), bytesOf(scanCase.spec), skew),
        transition(host.transition(), scanCase.spec.transitionElements() * sizeof(float), 0),
        initial(host.initial(), bytesOf(scanCase.spec), skew),
        prefix(outputs == Outputs::PrefixInPlace ? nullptr : host.prefix(), bytesOf(scanCase.spec), skew),
        total(outputs == Outputs::TotalInPlace ? nullptr : host.total(), bytesOf(scanCase.spec), skew),
        outputs_(outputs) {}

  static std::size_t bytesOf(const ScanSpec& spec) { return spec.elements() * sizeOf(spec.stateType); }

  ScanProblem problem() {
    ScanProblem problem = host.problem();
    problem.state = state.data();
    problem.transition = reinterpret_cast<const float*>(transition.data());
    problem.initial = problem.initial == nullptr ? nullptr : initial.data();
    if (problem.prefix != nullptr) problem.prefix = prefixMirror().data();
    if (problem.total != nullptr) problem.total = totalMirror().data();
    return problem;
  }
  void fetch() {
    if (host.wantsPrefix()) prefixMirror().back(host.prefix());
    if (host.wantsTotal()) totalMirror().back(host.total());
  }

 private:
  const Mirror& prefixMirror() const { return outputs_ == Outputs::PrefixInPlace ? state : prefix; }
  const Mirror& totalMirror() const { return outputs_ == Outputs::TotalInPlace ? state : total; }
  Outputs outputs_;
};

struct Call {
  std::unique_ptr<const ScanCase> scanCase;  ///< what the buffers of the ranks point to
  Numbers numbers;
  seqparScanAlgorithm_t algorithm;
  std::vector<RankRun> ranks;
};

template <typename Value>
Value pick(std::mt19937_64& random, std::initializer_list<Value> values) {
  return values.begin()[random() % values.size()];
}

Call makeCall(std::mt19937_64& random, const GpuPeers& peers, const ScanSpec& spec, Numbers numbers,
              seqparScanAlgorithm_t algorithm) {
  Call call{std::make_unique<ScanCase>(makeScanCase(spec, numbers, random())), numbers, algorithm, {}};
  const std::size_t skew = random() % 4 == 0 ? sizeOf(spec.stateType) : 0;
  for (int rank = 0; rank < spec.size; ++rank) {
    const CurrentDevice current(peers.deviceOf(rank));
    call.ranks.emplace_back(*call.scanCase, rank, kOutputs[random() % std::size(kOutputs)], skew);
  }
  return call;
}

Call drawCall(std::mt19937_64& random, const GpuPeers& peers, seqparScanAlgorithm_t algorithm) {
  ScanSpec spec;
  spec.size = peers.size();
  spec.op = pick(random, {seqparScanSum, seqparScanScalar, seqparScanDiag});
  spec.direction = pick(random, {seqparForward, seqparReverse});
  spec.heads = pick<size_t>(random, {1, 2, 3, 6, 32});
  spec.dk = pick<size_t>(random, {1, 3, 16, 33, 64});
  spec.dv = pick<size_t>(random, {1, 5, 16, 24, 128});
  spec.sequences = pick<size_t>(random, {1, spec.heads});
  spec.stateType = pick(random, {seqparFloat32, seqparFloat32, seqparFloat16, seqparBfloat16});
  spec.wireType = pick(random, {seqparFloat32, seqparFloat32, seqparFloat16, seqparBfloat16});
  const Numbers numbers = pick(random, {Numbers::Exact, Numbers::Random});
  if (spec.op != seqparScanSum) {
    spec.decayForm = pick(random, {seqparDecayLinear, seqparDecayLog, seqparDecayLog2});
    if (numbers == Numbers::Exact && spec.decayForm == seqparDecayLog) spec.decayForm = seqparDecayLog2;
  }
  spec.flags = random() % 3 == 0;
  spec.initial = random() % 2 == 0;
  return makeCall(random, peers, spec, numbers, algorithm);
}

void enqueue(const GpuPeers& peers, Call& call) {
  const ScanSpec& spec = call.scanCase->spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    const CurrentDevice current(peers.deviceOf(rank));
    launchPeerScan(peers.view(rank), call.ranks[static_cast<std::size_t>(rank)].problem(), order,
                   scanAlgorithm(call.algorithm), peers.stream(rank));
  }
}

std::string compare(const char* what, const std::vector<float>& got, const ReferenceState& wanted, const Call& call) {
  const bool exact = call.numbers == Numbers::Exact;
  const double relative = exact ? 0 : relativeBound(call.scanCase->spec);
  const double absolute = exact ? 0 : absoluteBound(call.scanCase->spec);
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - wanted.value[i]);
    if (error <= relative * wanted.size[i] + absolute) continue;
    return concat(what, "[", i, "] is ", got[i], ", expected ", wanted.value[i]);
  }
  return "";
}

/// What is wrong, in words.
std::string judge(Call& call) {
  const auto reference = referenceScan(*call.scanCase);
  for (std::size_t rank = 0; rank < call.ranks.size(); ++rank) {
    RankRun& run = call.ranks[rank];
    run.fetch();
    std::string wrong;
    if (run.host.wantsPrefix()) wrong = compare("prefix", run.host.prefixValues(), reference[rank].prefix, call);
    if (wrong.empty() && run.host.wantsTotal()) {
      wrong = compare("total", run.host.totalValues(), reference[rank].total, call);
    }
    if (!wrong.empty()) return concat("rank ", rank, ": ", wrong);
  }
  return "";
}

using Draw = std::function<Call(std::mt19937_64&, const GpuPeers&)>;

/// Calls, `atOnce` of them without synchronisation between.
bool checkCalls(int size, int gpus, int channels, int batches, int atOnce, std::uint64_t seed, const Draw& draw) {
  std::mt19937_64 random(seed);
  const GpuPeers peers(size, channels, gpus);
  for (int batch = 0; batch < batches; ++batch) {
    std::vector<Call> calls;
    for (int i = 0; i < atOnce; ++i) calls.push_back(draw(random, peers));
    for (Call& call : calls) enqueue(peers, call);
    peers.synchronize();
    for (int rank = 0; rank < size; ++rank) {
      if (peers.timedOut(rank) == 0) continue;
      std::printf("%d ranks, seed %llu, batch %d: rank %d gave up waiting for %u\n", size,
                  static_cast<unsigned long long>(seed), batch, rank, peers.timedOut(rank) - 1);
      return false;
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::string wrong = judge(calls[i]);
      if (wrong.empty()) continue;
      std::ostringstream spec;
      spec << calls[i].scanCase->spec;
      std::printf("seed %llu, batch %d, call %zu, %s, %s: %s\n", static_cast<unsigned long long>(seed), batch, i,
                  seqparScanAlgorithmName(calls[i].algorithm), spec.str().c_str(), wrong.c_str());
      return false;
    }
  }
  std::printf("%d ranks on %d GPUs, %d channels: %d calls right\n", size, std::min(size, gpus), channels,
              batches * atOnce);
  return true;
}

bool checkRandom(int size, int gpus, int channels, int batches, int atOnce, std::uint64_t seed) {
  return checkCalls(size, gpus, channels, batches, atOnce, seed, [](std::mt19937_64& random, const GpuPeers& peers) {
    return drawCall(random, peers, oneOf(random, peerAlgorithms()));
  });
}

/// Few channels with as many threads as a CTA has go round their rings, at any place in them.
bool checkFewChannels(int gpus, std::uint64_t seed) {
  return checkCalls(2, gpus, 1, 2, 12, seed, [](std::mt19937_64& random, const GpuPeers& peers) {
    ScanSpec spec;
    spec.size = peers.size();
    spec.op = seqparScanDiag;
    spec.heads = 1 + random() % 4;
    spec.dk = 64;
    spec.dv = 128 + 4 * (random() % 30);
    spec.flags = random() % 2 == 0;
    return makeCall(random, peers, spec, Numbers::Exact, random() % 2 == 0 ? seqparScanChain : seqparScanLasp1);
  });
}

/// A rank that does not come: the others end in time, and say for whom they waited.
bool checkAbsent(int gpus) {
  std::mt19937_64 random(3);
  for (const auto algorithm : peerAlgorithms()) {
    const GpuPeers peers(3, 4, gpus, 50000000);
    Call call = drawCall(random, peers, algorithm);
    const int order[] = {0, 1, 2};
    for (int rank = 1; rank < 3; ++rank) {
      const CurrentDevice current(peers.deviceOf(rank));
      launchPeerScan(peers.view(rank), call.ranks[static_cast<std::size_t>(rank)].problem(), order,
                     scanAlgorithm(algorithm), peers.stream(rank));
    }
    peers.synchronize();
    if (peers.timedOut(1) == 0 || peers.timedOut(2) == 0) {
      std::printf("%s: a rank that needs rank 0, which is not there, did not give up\n",
                  seqparScanAlgorithmName(algorithm));
      return false;
    }
  }
  std::printf("an absent rank is noticed by all algorithms\n");
  return true;
}

int run(int argumentCount, char** arguments) {
  const int gpus = reachableGpus();
  if (gpus == 0) {
    std::printf("no GPU\n");
    return 77;
  }
  const bool small = argumentCount > 1 && std::strcmp(arguments[1], "--small") == 0;
  const std::uint64_t seed = argumentCount > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device()();
  if (small) return checkRandom(3, gpus, 2, 1, 14, seed) ? 0 : 1;
  for (int size = 1; size <= 8; ++size) {
    if (!checkRandom(size, gpus, 1 + size % 4 * 5, 6, 24, seed + static_cast<std::uint64_t>(size))) return 1;
  }
  return checkFewChannels(gpus, seed) && checkAbsent(gpus) ? 0 : 1;
}

}  // namespace

int main(int argumentCount, char** arguments) {
  // Kernels that wait for each other must not share a queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  try {
    return run(argumentCount, arguments);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
