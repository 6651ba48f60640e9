#include "gpu_loop.h"

#include <chrono>

namespace seqpar::perf {

GpuLoop::GpuLoop(Gpu& gpu, const Work* work, const Settings& settings, int iterations)
    : gpu_(gpu), work_(work), settings_(settings), iterations_(iterations) {
  if (!settings.graph()) return;
  graph_ = gpu_.capture([this] { enqueueIterations(); });
  // The first replay is slower than later ones.
  graph_->launch();
  gpu_.synchronize();
}

void GpuLoop::enqueueIteration() {
  for (int i = 0; work_ != nullptr && i < settings_.aggregate; ++i) work_->run();
}

void GpuLoop::enqueueIterations() {
  for (int i = 0; i < iterations_; ++i) {
    if (settings_.barrier) gpu_.barrier();
    enqueueIteration();
  }
}

void GpuLoop::enqueueAll() {
  if (!graph_) return enqueueIterations();
  for (int i = 0; i < settings_.graphLaunches; ++i) graph_->launch();
}

std::vector<double> GpuLoop::time() {
  if (settings_.perIteration && work_ != nullptr) {
    return gpu_.eachUs(iterations_, settings_.barrier, [this] { enqueueIteration(); });
  }
  double calledUs = 0;
  const double us = gpu_.elapsedUs([&] {
    const auto start = std::chrono::steady_clock::now();
    enqueueAll();
    calledUs = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  });
  const int launches = graph_ ? settings_.graphLaunches : 1;
  return {(settings_.cpuTime ? calledUs : us) / (iterations_ * launches)};
}

}  // namespace seqpar::perf
