#include "scan_on_threads.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/scan/chain.h"
#include "kernels/scan/chain_fast.h"
#include "kernels/scan/doubling.h"
#include "kernels/scan/lasp1.h"
#include "kernels/scan/oneshot.h"
#include "kernels/scan/oneshot_fast.h"
#include "kernels/scan/shape_of.h"
#include "kernels/scan/transposed.h"
#include "kernels/scan/transposed_fast.h"

namespace seqpar::test {
namespace {

template <class Program>
bool runProgram(const ScanTask& task, const ChannelThread& thread) {
  return Program(thread.view, task, thread.channel, thread.group, thread.positions).run();
}

template <class Program>
bool runFast(const ScanTask& task, const ChannelThread& thread) {
  const FastTask fast = makeFastTask(thread.view, task);
  return Program(thread.view, fast, thread.channel, thread.group, thread.positions).run();
}

template <class Shape>
bool runShape(seqparScanAlgorithm_t algorithm, const ScanTask& task, const ChannelThread& thread) {
  switch (algorithm) {
    case seqparScanChain:
      return runProgram<ChainProgram<Shape, ThreadMemory, ThreadGroup, 4>>(task, thread);
    case seqparScanOneshot:
      return runProgram<OneshotProgram<Shape, ThreadMemory, ThreadGroup, false>>(task, thread);
    case seqparScanTransposed:
    case seqparScanHier:  // between peers, which are of one node
      return runProgram<TransposedProgram<Shape, ThreadMemory, ThreadGroup>>(task, thread);
    case seqparScanDoubling:
      return runProgram<DoublingProgram<Shape, ThreadMemory, ThreadGroup>>(task, thread);
    case seqparScanLasp1:
      return runProgram<Lasp1Program<Shape, ThreadMemory, ThreadGroup>>(task, thread);
    case seqparScanLasp2:
      return runProgram<OneshotProgram<Shape, ThreadMemory, ThreadGroup, true>>(task, thread);
    default:
      throw std::logic_error("not an algorithm of kernels");
  }
}

}  // namespace

bool runScanChannel(seqparScanAlgorithm_t algorithm, const ScanTask& task, const ChannelThread& thread) {
  bool ok = true;
  withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    // Programs for fast vecs speak to others as those for all do: in one call some ranks take these, some those.
    using Oneshot = FastOneshotProgram<ThreadMemory, ThreadGroup>;
    using Transposed = FastTransposedProgram<ThreadMemory, ThreadGroup>;
    const auto threads = static_cast<std::uint32_t>(thread.group.threads());
    const bool fast = Shape::kFast && !task.flags && thread.view.self % 3 != 2;
    if (fast && algorithm == seqparScanChain) {
      using OneRow = FastChainProgram<ThreadMemory, ThreadGroup, 1, true>;
      if (OneRow::fits(task, threads)) {
        ok = runFast<OneRow>(task, thread);
      } else if ((thread.view.self + thread.channel) % 2 == 0) {
        ok = runFast<FastChainProgram<ThreadMemory, ThreadGroup, 1, false>>(task, thread);
      } else {
        ok = runFast<FastChainProgram<ThreadMemory, ThreadGroup, 2, false>>(task, thread);
      }
    } else if (fast && algorithm == seqparScanOneshot && Oneshot::fits(task, threads)) {
      ok = runFast<Oneshot>(task, thread);
    } else if (fast && (algorithm == seqparScanTransposed || algorithm == seqparScanHier) &&
               Transposed::fits(task, threads)) {
      ok = runFast<Transposed>(task, thread);
    } else {
      ok = runShape<Shape>(algorithm, task, thread);
    }
  });
  return ok;
}

ThreadScan::ThreadScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs, int channels)
    : case_(std::move(scanCase)) {
  const ScanSpec& spec = case_.spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    buffers_.emplace_back(case_, rank, outputs[static_cast<std::size_t>(rank)]);
    const ScanProblem problem = buffers_.back().problem();
    auto& tasks = tasks_.emplace_back(makeScanTasks(peers.view(rank), problem, order));
    for (ScanTask& task : tasks) task.cut(channels);
  }
}

bool ThreadScan::run(seqparScanAlgorithm_t algorithm, const ChannelThread& thread) const {
  const auto& tasks = tasks_[static_cast<std::size_t>(thread.view.self)];
  return std::all_of(tasks.begin(), tasks.end(), [&](const ScanTask& task) {
    const bool ok = thread.channel >= task.channels || runScanChannel(algorithm, task, thread);
    thread.group.sync();
    return ok;
  });
}

}  // namespace seqpar::test
