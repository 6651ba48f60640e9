#include "scan/nccl/backend.h"

#include <algorithm>

#include "device/arena.h"
#include "scan/backend.h"
#include "scan/cut.h"
#include "scan/nccl/algorithms.h"

namespace seqpar {

void ncclScan(DeviceGroup& group, const ScanProblem& problem, std::span<const int> order, std::span<const int> nodes,
              const ScanAlgorithm& row, int blocks, DeviceStream stream) {
  if (problem.elements() == 0) return;
  const auto own = std::find(order.begin(), order.end(), group.rank());
  const ScanOrder positions{order, static_cast<int>(own - order.begin()), nodes};
  if (row.nccl.run == nullptr) {
    refuseAlgorithm(row, "over NCCL", [](const ScanAlgorithm& other) { return other.nccl.run != nullptr; });
  }
  if (row.traffic == ScanTraffic::NodeShards) hierRails(positions);  // throws before anything is enqueued

  DeviceArena& arena = group.arena();
  arena.reset();
  NcclAffine affine(problem, arena, static_cast<cudaStream_t>(stream));
  const NcclScanSetting setting{*group.nccl(), affine, problem.wireType, positions, stream};
  const NcclStep step(setting.nccl, stream);
  row.nccl.run(setting, static_cast<std::size_t>(std::max(1, blocks)));
}

namespace {

class NcclScans : public ScanBackend {
 public:
  explicit NcclScans(Communicator& comm)
      : comm_(comm), links_(measureNcclLinks(*comm.device()->nccl(), comm.control(), comm.topology().nodes)) {}

  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const override {
    return ncclScanEstimates(problem, scanNodes(comm_.topology().nodes, problem.direction), links_, blocks);
  }

  bool multiplies(const ScanAlgorithm& row) const override {
    const auto& nodes = comm_.topology().nodes;
    const bool oneNode = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return node == nodes.front(); });
    return multipliesAmong(row, comm_.size()) || (row.products == Products::BetweenNcclNodes && !oneNode);
  }

  void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int blocks,
           const CallerStream& stream) override {
    const auto ranks = scanRanks(comm_.size(), problem->direction);
    const auto nodes = scanNodes(comm_.topology().nodes, problem->direction);
    comm_.enqueue("seqparAllScan", stream.device,
                  [&](DeviceGroup& group) { ncclScan(group, *problem, ranks, nodes, row, blocks, stream.device); });
  }

  std::string limits() const override { return "not every algorithm is done over NCCL"; }

  std::unique_ptr<HeadWindow> makeHeadWindow(int64_t, int64_t, seqparDirection_t) override {
    fail(seqparInvalidUsage,
         "seqparScanDeviceCreate: not all ranks reach each other by load and store: ", comm_.device()->reason());
  }

  std::optional<LinkModel> links() const override {
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

}  // namespace

std::unique_ptr<ScanBackend> makeNcclScans(Communicator& comm) {
  return std::make_unique<NcclScans>(comm);
}

}  // namespace seqpar
