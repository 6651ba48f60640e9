// The backend of All-Scan: runs the library's host programs of src/scan/algorithms on a mailbox and an algebra that
// record messages and work instead of moving data. Choices and predictions are the library's models of GPUs.
#include <algorithm>
#include <cmath>

#include "base/convert.h"
#include "library/recorder.h"
#include "scan/backend.h"
#include "scan/order.h"
#include "scan/plan/backend.h"

namespace seqpar {
namespace {

using sim::Engine;
using sim::Recorder;
using sim::StepKind;

/// A state has few units, so that messages have few real bytes whatever the state's size: enough for the blocks of a
/// pipeline and for a shard of each position. A unit is kUnit elements here, and `scale` times as many in the simulated
/// machine.
constexpr size_t kUnitsOfMaps = 64, kUnits = 256;
constexpr size_t kUnit = 16;

size_t mostUnits(const ScanAlgorithm& row, int positions) {
  return row.traffic == ScanTraffic::Maps ? kUnitsOfMaps : std::max(kUnits, static_cast<size_t>(positions));
}

struct Units {
  Units(const ScanProblem& problem, size_t most) : heads(problem.heads) {
    const size_t elements = problem.elements();
    if (problem.op == seqparScanMatrix) {
      count = problem.heads * ((problem.dv + kUnit - 1) / kUnit);
    } else {
      count = std::clamp<size_t>(elements / kUnit, 1, most);
    }
    scale = static_cast<double>(elements) / static_cast<double>(count * kUnit);
    const auto of = static_cast<double>(problem.heads);
    switch (problem.op) {
      case seqparScanSum:
        break;
      case seqparScanScalar:
        coefficients = of;
        break;
      case seqparScanDiag:
        coefficients = of * static_cast<double>(problem.dk);
        break;
      default:
        matrix = true;
        coefficients = of * static_cast<double>(problem.dk * problem.dk + 1);
        hopFlops = 2.0 * static_cast<double>(problem.dk) * static_cast<double>(elements);
    }
  }
  size_t heads, count = 1;
  double scale = 1, coefficients = 0, hopFlops = 0;  ///< of the whole state
  bool matrix = false;
};

/// Blocks are ranges of units. Memory contents are meaningless; work is charged to the recorder.
class RecordedAffine final : public Affine {
 public:
  RecordedAffine(const ScanProblem& problem, size_t most) : problem_(problem), units_(problem, most) {}
  double scale() const { return units_.scale; }

  std::vector<Block> split(size_t parts) const override { return split(Block{0, units_.count}, parts); }
  std::vector<Block> split(Block block, size_t parts) const override {
    std::vector<Block> blocks;
    const size_t units = block.end - block.begin, count = std::min(parts, units);
    for (size_t i = 0; i < count; ++i) {
      blocks.push_back({block.begin + units * i / count, block.begin + units * (i + 1) / count});
    }
    return blocks;
  }
  size_t stateElements(Block block) const override { return (block.end - block.begin) * kUnit; }
  size_t coefficientElements(Block block) const override {
    double share = static_cast<double>(block.end - block.begin) / static_cast<double>(units_.count);
    if (units_.matrix) {  // whole matrices of the heads that the block touches
      const double perHead = static_cast<double>(units_.count) / static_cast<double>(units_.heads);
      share = (std::ceil(static_cast<double>(block.end) / perHead) -
               std::floor(static_cast<double>(block.begin) / perHead)) /
              static_cast<double>(units_.heads);
    }
    return static_cast<size_t>(std::ceil(units_.coefficients * share / units_.scale));
  }
  void packState(Block block, Target) override { fold(block); }
  void packCoefficients(Block, float*) override {}
  void hop(Block block, Values, Target) override {
    const auto& scan = Recorder::current().machine().scan;
    const double bytes = bytesOf(block, problem_.wireType);
    const double us = units_.matrix ? flopsOf(block) / scan.matrixTflops * 1e-6 : bytes / scan.streamTbs * 1e-6;
    work(us);
  }
  void compose(Block block, const float*, Values, float* earlierA, float*) override {
    const double us = flopsOf(block) / Recorder::current().machine().scan.matrixTflops * 1e-6;
    if (!units_.matrix) return fold(block);
    const double matrices =
        earlierA == nullptr ? 0 : static_cast<double>(problem_.dk) / static_cast<double>(problem_.dv);
    work(us * (1 + matrices));
  }
  void convert(Block, Values, Target, seqparDataType_t) const override {}

 private:
  double bytesOf(Block block, seqparDataType_t type) const {
    return static_cast<double>(stateElements(block) * sizeOf(type)) * units_.scale;
  }
  double flopsOf(Block block) const {
    return units_.hopFlops * static_cast<double>(block.end - block.begin) / static_cast<double>(units_.count);
  }
  void fold(Block block) const {
    work(bytesOf(block, problem_.wireType) / Recorder::current().machine().scan.foldTbs * 1e-6);
  }
  static void work(double us) { Recorder::current().step(StepKind::Work, 0, us); }

  const ScanProblem& problem_;
  Units units_;
};

/// Records messages; a received message's contents are meaningless. Nothing waits.
class RecordingMailbox final : public Mailbox {
 public:
  explicit RecordingMailbox(double scale) : scale_(scale) {}
  int rank() const override { return Recorder::current().rank(); }
  int size() const override { return Recorder::current().ranks(); }
  size_t maxMessage() const override { return size_t{1} << 40; }
  size_t window() const override { return size_t{1} << 50; }
  bool direct(int) const override { return false; }
  void begin(const char*, uint64_t) override {}
  void end() override {}
  void abandon() noexcept override {}
  bool waited() const override { return false; }
  Target acquire(std::span<const int> to, size_t bytes) override {
    // A message to several ranks goes to the ranks after this one first, so that not all send to the same rank.
    to_.assign(to.begin(), to.end());
    std::rotate(to_.begin(), std::find_if(to_.begin(), to_.end(), [&](int each) { return each > rank(); }), to_.end());
    bytes_ = bytes;
    return at(bytes);
  }
  void commit() override {
    const StepKind kind = to_.size() > 1 ? StepKind::Share : StepKind::Send;
    for (const int to : to_) Recorder::current().step(kind, to, static_cast<double>(bytes_) * scale_);
  }
  const std::byte* receive(int from, size_t bytes) override {
    Recorder::current().step(StepKind::Receive, from, static_cast<double>(bytes) * scale_);
    return at(bytes);
  }
  void release(int) override {}
  bool ready(int) override { return false; }
  bool readable(int) const override { return false; }
  bool readsFast() const override { return false; }
  void read(int, std::span<const RemoteBytes>, std::span<const std::span<std::byte>>) override {
    fail(seqparInternalError, "a simulated rank reads another one's memory");
  }

 private:
  std::byte* at(size_t bytes) {
    if (memory_.size() < bytes + 64) memory_.resize(bytes + 64);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64;
  }

  double scale_;
  std::vector<std::byte> memory_;
  std::vector<int> to_;
  size_t bytes_ = 0;
};

class SimulatedScans final : public ScanBackend {
 public:
  explicit SimulatedScans(Communicator& comm) : comm_(comm) {
    const auto& machine = Recorder::current().machine();
    link_ = {machine.local.alphaUs * 1e-6, machine.local.gbs * 1e9};
    links_.node = {machine.nccl.hopUs * 1e-6, 1e-9 / machine.nccl.gbs};
    links_.network = Recorder::current().oneNode()
                         ? links_.node
                         : NcclLink{(machine.net.alphaUs + machine.net.overheadUs) * 1e-6, 1e-9 / machine.net.gbs};
  }

  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const override {
    if (!Recorder::current().direct()) {
      return ncclScanEstimates(problem, scanNodes(comm_.topology().nodes, problem.direction), links_, blocks);
    }
    const int channels = comm_.device()->peers().channels;
    if (problem.op == seqparScanMatrix) return estimateDeviceMatrixScan(problem, comm_.size(), link_, channels);
    return estimateDeviceScan(problem, comm_.size(), link_, channels);
  }

  bool multiplies(const ScanAlgorithm& row) const override { return multipliesAmong(row, comm_.size()); }

  void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int blocks,
           const CallerStream& stream) override {
    comm_.enqueue("seqparAllScan", stream.device, [&](DeviceGroup&) { record(*problem, row, blocks, stream.device); });
  }

  std::string limits() const override { return "limits of kernels are not simulated"; }

  std::optional<LinkModel> links() const override {
    LinkModel model;
    if (Recorder::current().direct()) {
      model.node = {link_.alpha, 1 / link_.bytesPerSecond, 0};
      model.network = model.process = model.node;
    } else {
      model.node = {links_.node.alpha, links_.node.secondsPerByte, 0};
      model.network = {links_.network.alpha, links_.network.secondsPerByte, 0};
      model.process = model.node;
    }
    return model;
  }

 private:
  /// The row with the kernel that serves `row` between GPUs that reach each other's memory.
  static const ScanAlgorithm& kernelOf(const ScanAlgorithm& row) {
    for (const auto& other : scanAlgorithms()) {
      if (other.peers.seconds == row.peers.seconds) return other;
    }
    return row;
  }

  void record(const ScanProblem& problem, const ScanAlgorithm& given, int blocks, const void* stream) const {
    auto& recorder = Recorder::current();
    const auto& machine = recorder.machine();
    const bool direct = recorder.direct();
    const ScanAlgorithm& row = direct ? kernelOf(given) : given;
    const auto ranks = scanRanks(comm_.size(), problem.direction);
    const auto nodes = scanNodes(comm_.topology().nodes, problem.direction);
    const int position = scanPosition(comm_.rank(), comm_.size(), problem.direction);
    RecordedAffine affine(problem, mostUnits(row, comm_.size()));
    RecordingMailbox mail(affine.scale());
    recorder.steps(stream, 0, direct ? Engine::Kernel : Engine::Nccl, direct ? machine.gpu.sms : machine.nccl.ctas,
                   row.name, [&] {
                     recorder.step(StepKind::Work, 1, direct ? machine.scan.callUs : machine.nccl.startUs);
                     row.host.run(affine, problem, {ranks, position, nodes, {}}, mail, parts(problem, row, blocks));
                   });
  }

  /// A kernel forwards each piece as soon as it has arrived; NCCL's steps send the blocks of the model.
  size_t parts(const ScanProblem& problem, const ScanAlgorithm& row, int blocks) const {
    if (!Recorder::current().direct()) return static_cast<size_t>(std::max(1, blocks));
    // Other programs work in rows of what all channels hold at once.
    constexpr double kMostRows = 16, kRowBytes = 512 * 1024, kMostChunks = 256;
    const double bytes = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
    const double chunk = row.pipelined
                             ? std::max(Recorder::current().machine().scan.chunkKib * 1024, bytes / kMostChunks)
                             : std::max(kRowBytes, bytes / kMostRows);
    return std::max<size_t>(1, static_cast<size_t>(std::lround(bytes / chunk)));
  }

  Communicator& comm_;
  DeviceLink link_;
  NcclLinks links_;
};

}  // namespace

std::unique_ptr<ScanBackend> makeScanBackend(Communicator& comm) {
  return std::make_unique<SimulatedScans>(comm);
}

}  // namespace seqpar
