#include "matrix_on_threads.h"

#include "scan/device_matrix_task.h"
#include "scan/matrix_chain.h"

namespace seqpar::test {
namespace {

template <class Shape>
void runLane(const MatrixScan& scan, const LaneThread& thread, SplitNumber* shared) {
  MatrixChain<Shape, ThreadMemory, ThreadGroup, PlainProduct> lane(thread.view, scan, thread.lane, thread.group,
                                                                   shared);
  lane.run(partOf({0, scan.groups()}, thread.lane, thread.view.lanes));
}

}  // namespace

ThreadMatrixScan::ThreadMatrixScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs,
                                   int group)
    : case_(std::make_unique<const ScanCase>(std::move(scanCase))) {
  const ScanSpec& spec = case_->spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    buffers_.emplace_back(*case_, rank, outputs[static_cast<std::size_t>(rank)]);
    RankScan& mine = ranks_.emplace_back();
    mine.scans = makeMatrixScans(peers.view(rank), buffers_.back().problem(), order);
    for (MatrixScan& scan : mine.scans) scan.group = group;
    const std::size_t bytes = 2 * static_cast<std::size_t>(group) * pairsOf(mine.scans[0].dk) * sizeof(SplitNumber);
    mine.shared.assign(static_cast<std::size_t>(peers.lanes()), std::vector<std::byte>(bytes));
  }
}

void ThreadMatrixScan::run(seqparScanAlgorithm_t, const LaneThread& thread) {
  RankScan& mine = ranks_[static_cast<std::size_t>(thread.view.self)];
  auto* const shared = reinterpret_cast<SplitNumber*>(mine.shared[static_cast<std::size_t>(thread.lane)].data());
  for (const MatrixScan& scan : mine.scans) {
    arePlain(scan) ? runLane<PlainPanels>(scan, thread, shared) : runLane<AnyPanels>(scan, thread, shared);
    thread.group.sync();
  }
}

}  // namespace seqpar::test
