#include "scan/peers/backend.h"

#include <algorithm>

#include "device/cuda.h"
#include "scan/order.h"
#include "scan/peers/matrix_task.h"
#include "scan/peers/probe.h"
#include "scan/peers/task.h"

namespace seqpar {
namespace {

void launchElementwise(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                       const ScanAlgorithm& row, DeviceStream stream) {
  // A single position exchanges no data: use the shortest algorithm.
  ScanLaunch* const launch = (order.size() == 1 ? scanAlgorithm(seqparScanChain) : row).peers.launch;
  if (launch == nullptr) {
    refuseAlgorithm(row, "between GPUs that reach each other's memory",
                    [](const ScanAlgorithm& other) { return other.peers.launch != nullptr; });
  }
  for (const ScanTask& task : makeScanTasks(view, problem, order)) {
    checkCuda(static_cast<cudaError_t>(launch(view, task, stream)), "scanKernel");
  }
}

void launchMatrices(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                    const ScanAlgorithm& row, DeviceStream stream) {
  if (row.matrix.launch == nullptr) {
    refuseAlgorithm(row, "with matrices between GPUs that reach each other's memory",
                    [](const ScanAlgorithm& other) { return other.matrix.launch != nullptr; });
  }
  if (order.size() > 1 && !matrixRowFits(row, problem, view.channels)) {
    fail(seqparInvalidUsage, "a MATRIX scan of dk ", problem.dk, " by ", row.name, " on GPUs with config.ctas ",
         view.channels, ", expected dk up to 752 (1520 in 16 bits on the wire) by ",
         scanAlgorithmsThat([](const ScanAlgorithm& other) { return other.matrix.matrices == 0; }), ", up to 752 by ",
         scanAlgorithmsThat([](const ScanAlgorithm& other) { return other.matrix.large; }),
         ", up to 128 by others with 2 CTAs, up to 80 with one");
  }
  // One position needs no memory for maps.
  const bool alone = order.size() == 1 && row.matrix.matrices > 0;
  MatrixLaunch* const launch = (alone ? scanAlgorithm(seqparScanChain) : row).matrix.launch;
  for (const MatrixScan& scan : makeMatrixScans(view, problem, order)) {
    checkCuda(static_cast<cudaError_t>(launch(view, scan, stream)), "a kernel of MATRIX scans");
  }
}

class PeerScans : public ScanBackend {
 public:
  explicit PeerScans(Communicator& comm) : comm_(comm) {
    const CurrentDevice current(comm.device()->device());
    const StreamHandle stream = makeStream();
    // Not on the caller's streams: they may be waiting for any event. Ranks synchronize before and after: if they share
    // a GPU, allocating and freeing may wait for another rank's measurement.
    DeviceProbe probe;
    probe.prepare(comm.device()->peers());
    std::vector<DeviceLink> all(static_cast<size_t>(comm.size()));
    comm.control().gatherValues(DeviceLink(), std::span(all));
    const DeviceLink mine = measureDeviceLink(probe, comm.device()->peers(), stream.get());
    comm.control().gatherValues(mine, std::span(all));
    // The slowest hop determines the speed of a chain.
    for (const auto& link : all) {
      link_.alpha = std::max(link_.alpha, link.alpha);
      const bool slower = link_.bytesPerSecond == 0 || link.bytesPerSecond < link_.bytesPerSecond;
      if (slower) link_.bytesPerSecond = link.bytesPerSecond;
    }
  }

  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int) const override {
    const int channels = comm_.device()->peers().channels;
    if (problem.op == seqparScanMatrix) return estimateDeviceMatrixScan(problem, comm_.size(), link_, channels);
    return estimateDeviceScan(problem, comm_.size(), link_, channels);
  }

  bool multiplies(const ScanAlgorithm& row) const override { return multipliesAmong(row, comm_.size()); }

  void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int,
           const CallerStream& stream) override {
    const auto ranks = scanRanks(comm_.size(), problem->direction);
    // All ranks are peers, so a peer's index is its rank.
    comm_.enqueue("seqparAllScan", stream.device,
                  [&](DeviceGroup& group) { launchPeerScan(group.peers(), *problem, ranks, row, stream.device); });
  }

  std::string limits() const override { return "a head's matrices must fit an SM's shared memory"; }

  std::optional<LinkModel> links() const override {
    LinkModel model;
    model.node.alpha = link_.alpha;
    model.node.secondsPerByte = link_.bytesPerSecond > 0 ? 1 / link_.bytesPerSecond : 0;
    model.network = model.process = model.node;
    return model;
  }

  std::unique_ptr<HeadWindow> makeHeadWindow(int64_t heads, int64_t elements, seqparDirection_t direction) override {
    return makePeerHeadWindow(comm_, heads, elements, direction);
  }

 private:
  Communicator& comm_;
  DeviceLink link_;
};

}  // namespace

void launchPeerScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                    const ScanAlgorithm& row, DeviceStream stream) {
  const auto launch = problem.op == seqparScanMatrix ? launchMatrices : launchElementwise;
  launch(view, problem, order, row, stream);
}

std::unique_ptr<ScanBackend> makePeerScans(Communicator& comm) {
  return std::make_unique<PeerScans>(comm);
}

}  // namespace seqpar
