// The backend of All-Scan: runs the library's host programs of src/scan/algorithms on a mailbox and an algebra that
// record messages and work instead of moving data. Choices and predictions are the library's models of GPUs.
#include <algorithm>
#include <cmath>

#include "base/convert.h"
#include "kernels/scan/matrix_fits.h"
#include "library/mailbox.h"
#include "library/recorder.h"
#include "scan/backend.h"
#include "scan/cost.h"
#include "scan/host_model.h"
#include "scan/order.h"
#include "scan/peers_model.h"
#include "scan/plan/backend.h"

namespace seqpar {
namespace {

using sim::Engine;
using sim::Recorder;
using sim::RecordingMailbox;
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

/// Of a program's call.
struct ScanRates {
  double startUs = 0;
  double tbs = 1, hopTbs = 1;  ///< of additions, and of hops
};

/// Blocks are ranges of units. Memory contents are meaningless; work is charged to the recorder.
class RecordedAffine final : public Affine {
 public:
  RecordedAffine(const ScanProblem& problem, size_t most, const ScanRates& rates)
      : problem_(problem), units_(problem, most), hopTbs_(rates.hopTbs), rateTbs_(rates.tbs) {}
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
  void packState(Block block, Target) override { fold(block, HostTerms::kPack); }
  void packCoefficients(Block, float*) override {}
  void hop(Block block, Values x, Target to) override {
    if (onHosts() && !units_.matrix) return fold(block, to ? 1 : HostTerms::kFinish);
    if (units_.matrix && x.data == nullptr) return;  // no product with a state of zeros
    const auto& scan = Recorder::current().machine().scan;
    const double bytes = bytesOf(block, problem_.wireType);
    const double us = units_.matrix ? flopsOf(block) / scan.matrixTflops * 1e-6 : bytes / hopTbs_ * 1e-6;
    work(us);
  }
  void compose(Block block, const float*, Values, float* earlierA, float*) override {
    const double us = flopsOf(block) / Recorder::current().machine().scan.matrixTflops * 1e-6;
    if (!units_.matrix) return fold(block, HostTerms::kFold);
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
  static bool onHosts() { return Recorder::current().machine().onHosts(); }
  /// `ofHop`: the work relative to a hop that sends on, by the library's model of hosts.
  void fold(Block block, double ofHop) const {
    const auto& machine = Recorder::current().machine();
    const double bytes = bytesOf(block, problem_.wireType);
    if (!onHosts()) return work(bytes / rateTbs_ * 1e-6);
    const auto state = static_cast<double>(problem_.elements() * sizeOf(problem_.wireType));
    work(ofHop * bytes / machine.host.scanGbs.at(machine.inCaches(state)) * 1e-3);
  }
  static void work(double us) { Recorder::current().step(StepKind::Work, 0, us); }

  const ScanProblem& problem_;
  Units units_;
  double hopTbs_, rateTbs_;
};

/// Repeated calls are recorded like the first one.
class RepeatedScan final : public PreparedScan {
 public:
  RepeatedScan(ScanBackend& backend, const ScanProblem& problem, const ScanAlgorithm& row, int blocks)
      : backend_(backend), problem_(problem), row_(row), blocks_(blocks) {}
  void run(const ScanArrays<void>& arrays, const CallerStream& stream) override {
    auto problem = std::make_shared<ScanProblem>(problem_);
    static_cast<ScanArrays<void>&>(*problem) = arrays;
    backend_.run(std::move(problem), row_, blocks_, stream);
  }

 private:
  ScanBackend& backend_;
  ScanProblem problem_;
  const ScanAlgorithm& row_;
  int blocks_;
};

class SimulatedScans final : public ScanBackend {
 public:
  explicit SimulatedScans(Communicator& comm) : comm_(comm) {
    const auto& machine = Recorder::current().machine();
    if (machine.onHosts()) return;
    link_ = {machine.local.alphaUs * 1e-6, machine.local.gbs * 1e9};
    constexpr double kMeasured = 4 << 20;  // bytes of a message of the library's measurement
    const double gbs = comm.size() > 2 ? machine.nccl.flow(kMeasured) : machine.nccl.gbs;
    links_.node = {machine.nccl.hopUs * 1e-6, 1e-9 / machine.nccl.gbs};
    scanLinks_.node = {links_.node.alpha, 1e-9 / gbs};
    links_.network = Recorder::current().oneNode() ? links_.node
                                                   : NcclLink{(machine.net.alphaUs + machine.net.overheadUs) * 1e-6,
                                                              1e-9 / machine.sharedNetGbs()};
    scanLinks_.network = Recorder::current().oneNode() ? scanLinks_.node : links_.network;
  }

  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const override {
    if (onHosts()) {
      const auto nodes = scanNodes(comm_.topology().nodes, problem.direction);
      const Mailbox& mail = comm_.mailbox();
      const auto access = comm_.size() == 2 ? PairAccess(mail, 1 - comm_.rank()) : PairAccess();
      const ScanSetting setting{comm_.size(), nodes, comm_.links(), mail.maxMessage(), mail.window(), access};
      return estimateScan(problem, setting, blocks);
    }
    if (!Recorder::current().direct()) {
      return ncclScanEstimates(problem, scanNodes(comm_.topology().nodes, problem.direction), scanLinks_, blocks);
    }
    const int channels = comm_.device()->peers().channels;
    if (problem.op == seqparScanMatrix) return estimateDeviceMatrixScan(problem, comm_.size(), link_, channels);
    return estimateDeviceScan(problem, comm_.size(), link_, channels);
  }

  bool multiplies(const ScanAlgorithm& row) const override { return multipliesAmong(row, comm_.size()); }

  void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int blocks,
           const CallerStream& stream) override {
    if (onHosts()) {
      return Recorder::current().inOrder(&comm_, stream.host.get(),
                                         [&] { record(*problem, row, blocks, stream.host.get()); });
    }
    comm_.enqueue("seqparAllScan", stream.device, [&](DeviceGroup&) { record(*problem, row, blocks, stream.device); });
  }

  std::shared_ptr<PreparedScan> prepare(const ScanProblem& problem, const ScanAlgorithm& row, int blocks) override {
    return std::make_shared<RepeatedScan>(*this, problem, row, blocks);
  }

  std::string limits() const override { return "limits of kernels are not simulated"; }

  std::optional<LinkModel> links() const override {
    if (onHosts()) return std::nullopt;
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
  static bool onHosts() { return Recorder::current().machine().onHosts(); }

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
    if (!direct && !onHosts() && row.id == seqparScanLasp2) return gather(problem, ranks, position, stream);
    const ScanRates rates = ratesOf(problem, row);
    const bool kernel = direct && !row.pipelined && problem.op != seqparScanMatrix;
    const double ctas = onHosts() ? 0 : direct ? machine.gpu.sms : machine.nccl.ctas;
    // LASP1's kernel passes on the chunks of its channels as CHAIN passes on blocks.
    const bool chunks = kernel && row.id == seqparScanLasp1;
    const auto& program = chunks ? scanAlgorithm(seqparScanChain) : row;
    RecordedAffine affine(problem, mostUnits(program, comm_.size()), rates);
    // Kernels store a shard while they compute the next one.
    RecordingMailbox mail(affine.scale(), kernel && row.traffic == ScanTraffic::Shards);
    if (onHosts()) recorder.setCopiedBytes(2 * bytesOf(problem));
    const bool onePeer = row.pipelined || row.id == seqparScanDoubling || row.id == seqparScanLasp1;
    const Engine engine = direct || onHosts() ? Engine::Kernel : onePeer ? Engine::NcclHop : Engine::Nccl;
    recorder.steps(stream, 0, engine, ctas, row.name, [&] {
      recorder.step(StepKind::Work, 1, rates.startUs);
      program.host.run(affine, problem, {ranks, position, nodes, {}}, mail,
                       chunks ? chunksOfLasp1(problem) : parts(problem, row, blocks));
    });
  }

  size_t chunksOfLasp1(const ScanProblem& problem) const {
    const double chunk = PeerModel::kChunkBytes * comm_.device()->peers().channels;
    return std::max<size_t>(1, static_cast<size_t>(std::ceil(bytesOf(problem) / chunk)));
  }

  /// LASP2 over NCCL: a ring that gathers all maps, then the sum.
  void gather(const ScanProblem& problem, const std::vector<int>& ranks, int position, const void* stream) const {
    auto& recorder = Recorder::current();
    const auto& machine = recorder.machine();
    const auto size = ranks.size(), own = static_cast<size_t>(position);
    const double map = bytesOf(problem) + static_cast<double>(problem.heads) * transitionOfHead(problem) * 4;
    recorder.steps(stream, 0, Engine::Gather, machine.nccl.ctas, "lasp2", [&] {
      recorder.step(StepKind::Work, 1, machine.nccl.gatherStartUs);
      for (size_t step = 1; step < size; ++step) {
        recorder.step(StepKind::Send, ranks[(own + 1) % size], map);
        recorder.step(StepKind::Receive, ranks[(own + size - 1) % size], map);
      }
      recorder.step(StepKind::Work, 0, static_cast<double>(size + 2) * map / machine.gpu.hbmGbs * 1e-3);
    });
  }

  static double bytesOf(const ScanProblem& problem) {
    return static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  }

  ScanRates ratesOf(const ScanProblem& problem, const ScanAlgorithm& row) const {
    const auto& machine = Recorder::current().machine();
    if (onHosts()) return {machine.host.callUs, 1, 1};
    if (!Recorder::current().direct()) return {machine.nccl.startUs, machine.scan.foldTbs, machine.scan.streamTbs};
    const auto program = machine.scan.programs.find(row.name);
    const bool rows = problem.op != seqparScanMatrix && bytesOf(problem) > kRowBytes;
    if (program == machine.scan.programs.end() || problem.op == seqparScanMatrix) {
      return {machine.scan.callUs + (rows ? machine.scan.rowsUs : 0), machine.scan.foldTbs, machine.scan.streamTbs};
    }
    const int phases = row.id == seqparScanLasp1 ? 0 : row.traffic == ScanTraffic::Shards ? 2 : 1;
    const double peers = phases * std::max(0, comm_.size() - 2) * machine.scan.peerUs;
    const double more = rows ? program->second.rowsUs : 0;
    return {machine.scan.callUs + program->second.startUs + peers + more, program->second.rateTbs,
            program->second.rateTbs};
  }

  /// A kernel forwards each piece as soon as it has arrived; NCCL's steps send the blocks of the model.
  size_t parts(const ScanProblem& problem, const ScanAlgorithm& row, int blocks) const {
    if (!Recorder::current().direct()) return static_cast<size_t>(std::max(1, blocks));
    if (problem.op == seqparScanMatrix && row.id == seqparScanChain) {  // the panels of a channel, one after the other
      const size_t panels = problem.heads * ((problem.dv + kPanelColumns - 1) / kPanelColumns);
      const auto channels = static_cast<size_t>(std::min(comm_.device()->peers().channels, kMostMatrixChannels));
      return (panels + channels - 1) / std::min(channels, panels);
    }
    constexpr double kMostRows = 16, kMostChunks = 256;
    const double bytes = bytesOf(problem);
    const double chunk = row.pipelined
                             ? std::max(Recorder::current().machine().scan.chunkKib * 1024, bytes / kMostChunks)
                             : std::max(kRowBytes, bytes / kMostRows);
    return std::max<size_t>(1, static_cast<size_t>(std::lround(bytes / chunk)));
  }

  /// What the channels of a kernel hold at once.
  static constexpr double kRowBytes = 512 * 1024;

  Communicator& comm_;
  DeviceLink link_;
  NcclLinks links_, scanLinks_;  ///< of exchanges, of All-Scan
};

}  // namespace

std::unique_ptr<ScanBackend> makeScanBackend(Communicator& comm) {
  return std::make_unique<SimulatedScans>(comm);
}

}  // namespace seqpar
