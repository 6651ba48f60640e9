// A timed loop on GPUs.
#pragma once

#include <memory>
#include <vector>

#include "gpu.h"
#include "settings.h"
#include "timing.h"

namespace seqpar::perf {

/// The iterations of one work on this rank's GPU: back to back, each after a barrier, or one by one; as a graph if the
/// settings ask for it.
class GpuLoop {
 public:
  /// `work` null: barriers alone.
  GpuLoop(Gpu& gpu, const Work* work, const Settings& settings, int iterations);

  /// Collective: us of each iteration, or one mean; includes the barriers between them. GPU time, or with -C the host's
  /// time to enqueue them.
  std::vector<double> time();

 private:
  void enqueueIteration();
  void enqueueIterations();
  void enqueueAll();

  Gpu& gpu_;
  const Work* work_;
  const Settings& settings_;
  int iterations_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace seqpar::perf
