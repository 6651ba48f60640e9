// Random cases of All-Scan over NCCL, against the reference in fp64.
#pragma once

#include <cmath>
#include <deque>
#include <functional>
#include <random>

#include "device/arena.h"
#include "device/group.h"
#include "device/nccl_comm.h"
#include "reference_scan.h"
#include "scan/nccl/backend.h"
#include "scan_rows.h"
#include "support/scan_buffers.cuh"

namespace seqpar::test {

/// As much of a device group as a scan over NCCL needs.
class NcclOnlyGroup final : public DeviceGroup {
 public:
  explicit NcclOnlyGroup(NcclComm& nccl) : nccl_(nccl), alone_{nccl.rank()} {}

  int rank() const override { return nccl_.rank(); }
  int size() const override { return nccl_.size(); }
  int device() const override { return nccl_.device(); }
  int smCount() const override { return 1; }
  GpuKind slowest() const override { return {}; }
  int sharing() const override { return 1; }
  bool shared() const override { return false; }
  int sharedBlocks() const override { return 1; }
  const std::vector<int>& peerRanks() const override { return alone_; }
  const PeerView& peers() const override { return view_; }
  std::unique_ptr<PeerWindow> makeWindow(std::size_t) override { return nullptr; }
  NcclComm* nccl() const override { return &nccl_; }
  DeviceArena& arena() override { return arena_; }
  const std::string& transport() const override { return words_; }
  const std::string& reason() const override { return words_; }
  bool enqueue(const char*, DeviceStream, const std::function<void()>& launch) override {
    launch();
    return false;
  }
  bool inCapture(DeviceStream) const override { return false; }
  void checkCapture(const char*, DeviceStream) const override {}
  void drain() override {}
  void notice() override {}
  void release() noexcept override {}
  DeviceAllocation allocate(std::size_t) override { return {}; }

 private:
  NcclComm& nccl_;
  std::vector<int> alone_;
  PeerView view_;
  DeviceArena arena_;
  std::string words_;
};

struct NcclScanCase {
  ScanCase scan;
  Numbers numbers = Numbers::Exact;
  seqparScanEstimate_t choice{};
  std::vector<int> order, nodes;  ///< by position
  std::uint64_t seed = 0;
};

/// The `index`-th case of a seed: the same on all ranks. `nodes` is each rank's node.
inline NcclScanCase drawNcclScan(std::mt19937_64& random, const std::vector<int>& nodes, int index) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  const auto algorithms = ncclAlgorithms();
  constexpr seqparDataType_t kTypes[] = {seqparFloat32, seqparFloat32, seqparFloat16, seqparBfloat16};
  NcclScanCase result;
  ScanSpec spec;
  spec.size = static_cast<int>(nodes.size());
  spec.op = static_cast<seqparScanOp_t>(index % 4);
  spec.direction = below(2) == 0 ? seqparForward : seqparReverse;
  const bool round = below(2) == 0;
  spec.sequences = 1 + below(3);
  spec.heads = spec.sequences * (1 + below(4));
  spec.dk = round ? 16 * (1 + below(4)) : 1 + below(70);
  spec.dv = round ? 16 * (1 + below(4)) : 1 + below(70);
  spec.stateType = kTypes[below(4)];
  spec.wireType = kTypes[below(4)];
  const bool decays = spec.op == seqparScanScalar || spec.op == seqparScanDiag;
  spec.decayForm = decays ? static_cast<seqparDecayForm_t>(below(3)) : seqparDecayLinear;
  spec.flags = below(3) == 0;
  spec.initial = below(2) == 0;
  result.numbers = below(2) == 0 ? Numbers::Exact : Numbers::Random;
  // exp of a natural logarithm is not exact, so powers of two are passed directly or as logarithms to base 2.
  if (result.numbers == Numbers::Exact && spec.decayForm == seqparDecayLog) spec.decayForm = seqparDecayLog2;
  result.choice.algorithm = algorithms[static_cast<std::size_t>(index / 4) % algorithms.size()];
  result.choice.blocks = 1 + static_cast<int>(below(5));
  for (int position = 0; position < spec.size; ++position) {
    result.order.push_back(spec.rankAt(position));
    result.nodes.push_back(nodes[static_cast<std::size_t>(result.order.back())]);
  }
  result.seed = random();
  result.scan = makeScanCase(spec, result.numbers, result.seed);
  return result;
}

inline void compareScan(const char* what, const std::vector<float>& got, const ReferenceState& expected,
                        const NcclScanCase& given) {
  const bool exact = given.numbers == Numbers::Exact;
  const double relative = exact ? 0 : relativeBound(given.scan.spec);
  const double absolute = exact ? 0 : absoluteBound(given.scan.spec);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected.value[i]);
    expect(error <= relative * expected.size[i] + absolute, seqparScanAlgorithmName(given.choice.algorithm), " with ",
           given.choice.blocks, " blocks, ", given.scan.spec, ", seed ", given.seed, ": ", what, "[", i, "] is ",
           got[i], ", expected ", expected.value[i], exact ? " exactly" : " within the bound");
  }
}

/// A rank's buffers of a case, and the scan of them.
class NcclScanRun {
 public:
  NcclScanRun(const NcclScanCase& given, int rank, int device, std::mt19937_64& own)
      : given_(given),
        rank_(rank),
        buffers_(given.scan, rank, static_cast<Outputs>(own() % 5), device, own() % 3 == 0 ? 4 : 0) {}

  void enqueue(DeviceGroup& group, cudaStream_t stream) {
    group.enqueue("a scan over NCCL", stream, [&] {
      ncclScan(group, buffers_.problem(), given_.order, given_.nodes, scanAlgorithm(given_.choice.algorithm),
               given_.choice.blocks, stream);
    });
  }
  void check() {
    const auto reference = referenceScan(given_.scan)[static_cast<std::size_t>(rank_)];
    if (buffers_.wantsPrefix()) compareScan("prefix", buffers_.prefixValues(), reference.prefix, given_);
    if (buffers_.wantsTotal()) compareScan("total", buffers_.totalValues(), reference.total, given_);
  }

 private:
  const NcclScanCase& given_;
  int rank_;
  DeviceBuffers buffers_;
};

/// Runs `cases` random scans, a few at a time without a wait between them. `nodes` is each rank's node; ranks of a node
/// are neighbors.
inline void runNcclScans(DeviceGroup& group, const std::vector<int>& nodes, std::uint64_t seed, int cases,
                         const std::function<void(cudaStream_t)>& wait) {
  constexpr int kAtOnce = 6;
  const auto stream = seqpar::makeStream();
  std::mt19937_64 shared(seed);
  std::mt19937_64 own(seed + 1 + static_cast<std::uint64_t>(group.rank()));
  for (int index = 0; index < cases;) {
    std::deque<NcclScanCase> drawn;
    std::deque<NcclScanRun> runs;
    for (int i = 0; i < kAtOnce && index < cases; ++i, ++index) {
      drawn.push_back(drawNcclScan(shared, nodes, index));
      runs.emplace_back(drawn.back(), group.rank(), group.device(), own);
    }
    for (auto& run : runs) run.enqueue(group, stream.get());
    wait(stream.get());
    for (auto& run : runs) run.check();
  }
}

}  // namespace seqpar::test
