#include "matrix_on_threads.h"

#include "scan/device_matrix_task.h"
#include "scan/matrix_chain.h"
#include "scan/matrix_doubling.h"
#include "scan/matrix_gather.h"
#include "scan/matrix_transposed.h"

namespace seqpar::test {
namespace {

template <class Shape>
void runChain(const MatrixScan& scan, const LaneThread& thread, SplitNumber* pairs) {
  MatrixChain<Shape, ThreadMemory, ThreadGroup, PlainProduct> lane(thread.view, scan, thread.lane, thread.group, pairs);
  lane.run(partOf({0, scan.groups()}, thread.lane, thread.view.lanes));
}

void runGather(const MatrixScan& scan, const LaneThread& thread, const MapMemory& memory, bool toAll) {
  MatrixGather<ThreadMemory, ThreadGroup, PlainProduct>(thread.view, scan, thread.lane, thread.view.lanes, toAll,
                                                        thread.group, memory)
      .run();
}

void runTransposed(const MatrixScan& scan, const LaneThread& thread, const MapMemory& memory) {
  MatrixTransposed<ThreadMemory, ThreadGroup, PlainProduct>(thread.view, scan, thread.lane, thread.view.lanes,
                                                            thread.group, memory)
      .run();
}

void runDoubling(const MatrixScan& scan, const LaneThread& thread, const MapMemory& memory) {
  MatrixDoubling<ThreadMemory, ThreadGroup, PlainProduct>(thread.view, scan, thread.lane, thread.view.lanes,
                                                          thread.group, memory)
      .run();
}

}  // namespace

MatrixShared::MatrixShared(int dk, int group)
    : pairs(static_cast<std::size_t>(2 * group + 2) * pairsOf(dk)),
      matrix(2 * static_cast<std::size_t>(dk * matrixStride(dk))) {}

MapMemory MatrixShared::memory() {
  return {pairs.data(), {matrix.data(), matrix.data() + matrix.size() / 2}, &out, &in};
}

ThreadMatrixScan::ThreadMatrixScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs,
                                   int group, int threadsOfLane)
    : case_(std::make_unique<const ScanCase>(std::move(scanCase))) {
  const ScanSpec& spec = case_->spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    buffers_.emplace_back(*case_, rank, outputs[static_cast<std::size_t>(rank)]);
    RankScan& mine = ranks_.emplace_back();
    mine.scans = makeMatrixScans(peers.view(rank), buffers_.back().problem(), order);
    for (MatrixScan& scan : mine.scans) scan.group = group;
    mine.shared.assign(static_cast<std::size_t>(peers.lanes()), MatrixShared(mine.scans[0].dk, group));
    mine.all = std::make_unique<Meeting>(peers.lanes() * threadsOfLane);
  }
}

void ThreadMatrixScan::run(seqparScanAlgorithm_t algorithm, const LaneThread& thread) {
  RankScan& mine = ranks_[static_cast<std::size_t>(thread.view.self)];
  const MapMemory memory = mine.shared[static_cast<std::size_t>(thread.lane)].memory();
  for (const MatrixScan& scan : mine.scans) {
    switch (algorithm) {
      case seqparScanOneshot:
      case seqparScanLasp2:
        runGather(scan, thread, memory, algorithm == seqparScanLasp2);
        break;
      case seqparScanTransposed:
        runTransposed(scan, thread, memory);
        break;
      case seqparScanDoubling:
        runDoubling(scan, thread, memory);
        break;
      default:
        arePlain(scan) ? runChain<PlainPanels>(scan, thread, memory.pairs)
                       : runChain<AnyPanels>(scan, thread, memory.pairs);
    }
    mine.all->meet(false);
  }
}

}  // namespace seqpar::test
