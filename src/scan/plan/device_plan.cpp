#include "scan/plan/device_plan.h"

#include <algorithm>
#include <array>

#include "base/convert.h"
#include "device/cuda.h"
#include "scan/peers/matrix.h"
#include "scan/peers/probe.h"
#include "scan/peers/scan.h"
#include "scan/peers_matrix_model.h"
#include "scan/peers_model.h"
#include "scan/plan/all_scan.h"
#ifdef SEQPAR_NCCL
#include "scan/nccl/scan.h"
#endif

namespace seqpar {
namespace {

/// Between peers: kernels.
class DirectPlan : public DevicePlan {
 public:
  explicit DirectPlan(Communicator& comm) : comm_(comm) {
    const CurrentDevice current(comm.device()->device());
    const StreamHandle stream = makeStream();
    // Not the caller's streams: they may be waiting for anything.
    // Ranks meet before and after: where they share a GPU, allocating and freeing may wait for another's measurement.
    DeviceProbe probe;
    probe.prepare(comm.device()->peers());
    std::vector<DeviceLink> all(static_cast<size_t>(comm.size()));
    comm.control().gatherValues(DeviceLink(), std::span(all));
    const DeviceLink mine = measureDeviceLink(probe, comm.device()->peers(), stream.get());
    comm.control().gatherValues(mine, std::span(all));
    // The slowest hop is what a chain waits for.
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

  LinkModel links() const override {
    LinkModel model;
    model.node.alpha = link_.alpha;
    model.node.secondsPerByte = link_.bytesPerSecond > 0 ? 1 / link_.bytesPerSecond : 0;
    model.network = model.process = model.node;
    return model;
  }

 private:
  Communicator& comm_;
  DeviceLink link_;
};

#ifdef SEQPAR_NCCL

/// Where not all ranks are peers.
class NcclPlan : public DevicePlan {
 public:
  explicit NcclPlan(Communicator& comm)
      : comm_(comm), links_(measureNcclLinks(*comm.device()->nccl(), comm.control(), comm.topology().nodes)) {}

  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const override {
    return ncclScanEstimates(problem, scanNodes(comm_, problem.direction), links_, blocks);
  }

  LinkModel links() const override {
    LinkModel model;
    model.node = {links_.node.alpha, links_.node.secondsPerByte, 0};
    model.network = {links_.network.alpha, links_.network.secondsPerByte, 0};
    model.process = model.node;
    return model;
  }

 private:
  Communicator& comm_;
  NcclLinks links_;
};

#endif

}  // namespace

std::unique_ptr<DevicePlan> makeDevicePlan(Communicator& comm) {
#ifdef SEQPAR_NCCL
  if (!comm.device()->direct()) return std::make_unique<NcclPlan>(comm);
#endif
  return std::make_unique<DirectPlan>(comm);
}

void runScanOnDevice(Communicator& comm, const ScanProblem& problem, const seqparScanEstimate_t& choice,
                     DeviceStream stream) {
  const auto ranks = scanRanks(comm.size(), problem.direction);
  comm.enqueue("seqparAllScan", stream, [&](DeviceGroup& group) {
#ifdef SEQPAR_NCCL
    if (!group.direct()) return ncclScan(group, problem, ranks, scanNodes(comm, problem.direction), choice, stream);
#endif
    // All ranks are peers, so a peer's number is its rank.
    if (problem.op == seqparScanMatrix) return launchDeviceMatrixScan(group.peers(), problem, ranks, choice, stream);
    launchDeviceScan(group.peers(), problem, ranks, choice, stream);
  });
}

}  // namespace seqpar
