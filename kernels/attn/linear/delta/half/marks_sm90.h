// Marks of records (Task::marks), with which Advance overlaps with Prepare, the launch before it: Prepare adds 1 to the
// mark of each record that it has written, and Advance waits for it. Advance has programmatic dependent launch: its
// CTAs start when all CTAs of Prepare have started, so they wait only for CTAs that run, whatever else the GPU runs.
#pragma once

#include "kernels/arch/gpu_words.h"
#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/delta/half/panels_sm90.h"

namespace seqpar::attn::delta::half {

SEQPAR_DEVICE uint32_t* markOf(const Task& task, int64_t batch, int head, int number) {
  return task.marks + kMarksBefore + (batch * task.heads + head) * task.count + number;
}
/// The end of a kernel that may start before the previous one ends: the next kernel may only start after both.
SEQPAR_DEVICE void endMarked(const Task& task) {
  if (task.marks != nullptr && ptx::block() == 0 && ptx::thread() == 0) ptx::griddepcontrolWait();
}

/// Whether CTAs of Prepare leave this SM to Advance.
SEQPAR_DEVICE bool isLeft(const Task& task) {
  const int n = ptx::smId() % task.sms;
  return (n + 1) * task.leftSms / task.sms > n * task.leftSms / task.sms;
}
/// Prepare: calls run(head, number of the chunk, batch entry) for the records that the CTA takes, all heads of a chunk
/// first, and marks each. CTAs on some SMs take one; at least half of all CTAs stay. `shared`: a number in shared
/// memory; registers would keep it.
template <class Run>
SEQPAR_DEVICE void takeTurns(const Task& task, volatile int* shared, const Run& run) {
  ptx::griddepcontrolLaunchDependents();
  if (ptx::thread() == 0) *shared = static_cast<int>(ptx::atomAddGpu(task.marks, 1));
  for (;;) {
    ptx::syncthreads();
    const int rows = static_cast<int>(task.batch) * task.heads, turn = *shared;
    if (turn >= rows * task.count) return;
    run(turn % rows % task.heads, turn / rows, turn % rows / task.heads);
    ptx::syncthreads();
    if (threadAgain() != 0) continue;
    const int rowsAgain = static_cast<int>(task.batch) * task.heads, last = *shared;
    ptx::redAddReleaseGpu(markOf(task, 0, last % rowsAgain, last / rowsAgain), 1);
    const auto most = static_cast<uint32_t>(ptx::blocks() / 2);
    const bool leaves = isLeft(task) && ptx::atomAddGpu(task.marks + 1, 1) < most;
    *shared = leaves ? rowsAgain * task.count : static_cast<int>(ptx::atomAddGpu(task.marks, 1));
  }
}

}  // namespace seqpar::attn::delta::half
