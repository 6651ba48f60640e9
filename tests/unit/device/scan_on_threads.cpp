#include "scan_on_threads.h"

#include <algorithm>
#include <stdexcept>

#include "scan/chain_lane.h"
#include "scan/chain_plain_lane.h"
#include "scan/doubling_lane.h"
#include "scan/lasp1_lane.h"
#include "scan/oneshot_lane.h"
#include "scan/oneshot_plain_lane.h"
#include "scan/shape_of.h"
#include "scan/transposed_lane.h"
#include "scan/transposed_plain_lane.h"

namespace seqpar::test {
namespace {

template <class Program>
bool runProgram(const ScanTask& task, const LaneThread& thread) {
  return Program(thread.view, task, thread.lane, thread.group, thread.positions).run();
}

template <class Program>
bool runPlain(const ScanTask& task, const LaneThread& thread) {
  const PlainTask plain = makePlainTask(thread.view, task);
  return Program(thread.view, plain, thread.lane, thread.group, thread.positions).run();
}

template <class Shape>
bool runShape(seqparScanAlgorithm_t algorithm, const ScanTask& task, const LaneThread& thread) {
  switch (algorithm) {
    case seqparScanChain:
      return runProgram<ChainLane<Shape, ThreadMemory, ThreadGroup, 4>>(task, thread);
    case seqparScanOneshot:
      return runProgram<OneshotLane<Shape, ThreadMemory, ThreadGroup, false>>(task, thread);
    case seqparScanTransposed:
      return runProgram<TransposedLane<Shape, ThreadMemory, ThreadGroup>>(task, thread);
    case seqparScanDoubling:
      return runProgram<DoublingLane<Shape, ThreadMemory, ThreadGroup>>(task, thread);
    case seqparScanLasp1:
      return runProgram<Lasp1Lane<Shape, ThreadMemory, ThreadGroup>>(task, thread);
    case seqparScanLasp2:
      return runProgram<OneshotLane<Shape, ThreadMemory, ThreadGroup, true>>(task, thread);
    default:
      throw std::logic_error("not an algorithm of kernels");
  }
}

}  // namespace

bool runScanLane(seqparScanAlgorithm_t algorithm, const ScanTask& task, const LaneThread& thread) {
  bool ok = true;
  withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    // Programs for plain cells speak to others as those for all do: in one call some ranks take these, some those.
    using Oneshot = OneshotPlainLane<ThreadMemory, ThreadGroup>;
    using Transposed = TransposedPlainLane<ThreadMemory, ThreadGroup>;
    const auto threads = static_cast<std::uint32_t>(thread.group.threads());
    const bool plain = Shape::kPlain && !task.flags && thread.view.self % 3 != 2;
    if (plain && algorithm == seqparScanChain) {
      using OneRow = ChainPlainLane<ThreadMemory, ThreadGroup, 1, true>;
      if (OneRow::fits(task, threads)) {
        ok = runPlain<OneRow>(task, thread);
      } else if ((thread.view.self + thread.lane) % 2 == 0) {
        ok = runPlain<ChainPlainLane<ThreadMemory, ThreadGroup, 1, false>>(task, thread);
      } else {
        ok = runPlain<ChainPlainLane<ThreadMemory, ThreadGroup, 2, false>>(task, thread);
      }
    } else if (plain && algorithm == seqparScanOneshot && Oneshot::fits(task, threads)) {
      ok = runPlain<Oneshot>(task, thread);
    } else if (plain && algorithm == seqparScanTransposed && Transposed::fits(task, threads)) {
      ok = runPlain<Transposed>(task, thread);
    } else {
      ok = runShape<Shape>(algorithm, task, thread);
    }
  });
  return ok;
}

ThreadScan::ThreadScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs, int lanes)
    : case_(std::move(scanCase)) {
  const ScanSpec& spec = case_.spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    buffers_.emplace_back(case_, rank, outputs[static_cast<std::size_t>(rank)]);
    const ScanProblem problem = buffers_.back().problem();
    auto& tasks = tasks_.emplace_back(makeScanTasks(peers.view(rank), problem, order));
    for (ScanTask& task : tasks) task.cut(lanes);
  }
}

bool ThreadScan::run(seqparScanAlgorithm_t algorithm, const LaneThread& thread) const {
  const auto& tasks = tasks_[static_cast<std::size_t>(thread.view.self)];
  return std::all_of(tasks.begin(), tasks.end(), [&](const ScanTask& task) {
    const bool ok = thread.lane >= task.lanes || runScanLane(algorithm, task, thread);
    thread.group.sync();
    return ok;
  });
}

}  // namespace seqpar::test
