#include "gpu_loop.h"

namespace seqpar::perf {

GpuLoop::GpuLoop(Gpu& gpu, const Work* work, const Settings& settings, int iterations)
    : gpu_(gpu), work_(work), settings_(settings), iterations_(iterations) {
  if (!settings.graph) return;
  graph_ = gpu_.capture([this] { enqueueAll(); });
  // The first replay is slower than all others.
  graph_->launch();
  gpu_.synchronize();
}

void GpuLoop::enqueueAll() {
  for (int i = 0; i < iterations_; ++i) {
    if (settings_.barrier) gpu_.barrier();
    if (work_ != nullptr) work_->run();
  }
}

std::vector<double> GpuLoop::time() {
  if (settings_.perIteration && work_ != nullptr) {
    return gpu_.eachUs(iterations_, settings_.barrier, [this] { work_->run(); });
  }
  const double us = graph_ ? gpu_.elapsedUs([this] { graph_->launch(); }) : gpu_.elapsedUs([this] { enqueueAll(); });
  return {us / iterations_};
}

}  // namespace seqpar::perf
