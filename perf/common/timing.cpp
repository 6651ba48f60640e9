#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "gpu_loop.h"
#include "statistics.h"

namespace seqpar::perf {
namespace {

using Clock = std::chrono::steady_clock;

double usSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void finish(Work& work) {
  if (work.finish) work.finish();
}

void runOnce(Work& work) {
  work.run();
  finish(work);
}

/// Whether times are taken on the GPU: not if the host waits within a loop.
bool byGpu(const Group& group, const Settings& settings) {
  return group.gpu() != nullptr && settings.blocking == Blocking::None;
}

/// Warms up and decides, with equal results on all ranks, the number of iterations of a loop.
int planLoop(Work& work, Group& group, const Settings& settings) {
  work.prepare();
  runOnce(work);
  double slowest = 0;
  int runs = 0;
  // Warming up stops after the time of one loop.
  while (runs < std::max(settings.warmup, 1) && (settings.loopSeconds == 0 || slowest * runs < settings.loopSeconds)) {
    group.barrier();
    const auto start = Clock::now();
    runOnce(work);
    const double seconds = usSince(start) * 1e-6;
    const std::vector<double> all = group.gather(std::span(&seconds, 1));
    slowest = *std::max_element(all.begin(), all.end());
    ++runs;
  }
  slowest *= settings.aggregate;
  if (settings.loopSeconds == 0 || slowest * settings.iterations <= settings.loopSeconds) return settings.iterations;
  return std::max(settings.perIterationSkip + 1, static_cast<int>(settings.loopSeconds / slowest));
}

/// One iteration, including the waits of -z.
void iterate(Work& work, Group& group, const Settings& settings) {
  for (int i = 0; i < settings.aggregate; ++i) {
    work.run();
    if (settings.blocking == Blocking::Each || settings.blocking == Blocking::EachBarrier) finish(work);
    if (settings.blocking == Blocking::EachBarrier) group.barrier();
  }
}

/// Times of single iterations.
std::vector<double> timeEach(Work& work, Group& group, const Settings& settings, int iterations) {
  std::vector<double> samples;
  samples.reserve(static_cast<size_t>(iterations));
  for (int i = 0; i < iterations; ++i) {
    if (settings.barrier) group.barrier();
    const auto start = Clock::now();
    iterate(work, group, settings);
    const double called = usSince(start);
    finish(work);
    samples.push_back(settings.cpuTime ? called : usSince(start));
    if (settings.blocking == Blocking::IterationApart) group.barrier();
  }
  return samples;
}

/// The samples of a loop by the host's clock: one per iteration, or one mean.
std::vector<double> timeOnHost(Work& work, Group& group, const Settings& settings, int iterations) {
  if (settings.barrier || settings.perIteration || settings.blocking == Blocking::IterationApart) {
    return timeEach(work, group, settings, iterations);
  }
  const auto start = Clock::now();
  for (int i = 0; i < iterations; ++i) iterate(work, group, settings);
  const double called = usSince(start);
  finish(work);
  return {(settings.cpuTime ? called : usSince(start)) / iterations};
}

/// The times of a loop on this rank, per operation. `loop` is the GPU's; null if the host takes the times.
std::vector<double> timeLoop(Work& work, Group& group, const Settings& settings, int iterations, GpuLoop* loop) {
  work.prepare();
  group.barrier();
  std::vector<double> samples = loop != nullptr ? loop->time() : timeOnHost(work, group, settings, iterations);
  const double operations = work.timesPerIteration * settings.aggregate;
  for (double& sample : samples) sample = work.takesPart ? sample / operations : Timing::kNone;
  return samples;
}

/// The samples of all ranks, by rank.
std::vector<std::vector<double>> exchange(const std::vector<double>& mine, Group& group) {
  const std::vector<double> all = group.gather(std::span(mine));
  std::vector<std::vector<double>> ranks;
  for (size_t begin = 0; begin < all.size(); begin += mine.size()) {
    ranks.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(begin),
                       all.begin() + static_cast<std::ptrdiff_t>(begin + mine.size()));
  }
  return ranks;
}

/// The samples of all ranks, combined sample by sample.
std::vector<double> combineEach(const std::vector<std::vector<double>>& ranks, Average how) {
  std::vector<double> combined(ranks.front().size());
  std::vector<double> column(ranks.size());
  for (size_t i = 0; i < combined.size(); ++i) {
    for (size_t r = 0; r < ranks.size(); ++r) column[r] = ranks[r][i];
    combined[i] = combine(column, how);
  }
  return combined;
}

/// Adds a loop's iterations.
void append(IterationTimes& times, const std::vector<std::vector<double>>& ranks, int skip) {
  const std::vector<double> slowest = combineEach(ranks, Average::Most);
  times.slowest.insert(times.slowest.end(), slowest.begin(), slowest.end());
  times.counted.insert(times.counted.end(), slowest.begin() + skip, slowest.end());
  size_t row = 0;
  for (const std::vector<double>& rank : ranks) {
    if (std::isnan(rank.front())) continue;
    if (row == times.ofRank.size()) times.ofRank.emplace_back();
    times.ofRank[row].insert(times.ofRank[row].end(), rank.begin(), rank.end());
    ++row;
  }
}

/// Checks the latest operation and further ones, up to -c, until one is wrong.
size_t countWrong(Work& work, Group& group, const Settings& settings) {
  double sum = 0;
  for (int i = 0; i < settings.check && sum == 0; ++i) {
    if (i > 0 || !work.repeatable) {
      work.prepare();
      group.barrier();
      runOnce(work);
    }
    const double mine = work.takesPart ? static_cast<double>(work.wrong()) : 0.0;
    for (const double rank : group.gather(std::span(&mine, 1))) sum += rank;
  }
  return static_cast<size_t>(sum);
}

}  // namespace

double barrierUs(Group& group, const Settings& settings) {
  // The times exclude the barriers if iterations are timed one by one, or by the host's clock.
  if (!byGpu(group, settings) || !settings.barrier || settings.perIteration) return 0;
  GpuLoop loop(*group.gpu(), nullptr, settings, settings.iterations);
  std::vector<double> times;
  for (int round = 0; round < settings.repeats; ++round) {
    times.push_back(median(combineEach(exchange(loop.time(), group), settings.average)));
  }
  return median(times);
}

std::vector<Timing> measure(std::span<Work> works, Group& group, const Settings& settings,
                            const std::function<void()>& progress) {
  std::vector<Timing> timings(works.size());
  std::vector<std::vector<double>> loops(works.size());
  std::vector<std::unique_ptr<GpuLoop>> gpuLoops(works.size());
  for (size_t i = 0; i < works.size(); ++i) {
    timings[i].iterations = planLoop(works[i], group, settings);
    if (settings.perIteration) timings[i].each.emplace();
    if (!byGpu(group, settings)) continue;
    gpuLoops[i] = std::make_unique<GpuLoop>(*group.gpu(), &works[i], settings, timings[i].iterations);
  }
  const double between = barrierUs(group, settings);
  for (int round = 0; round < settings.repeats; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      Timing& timing = timings[i];
      const auto ranks = exchange(timeLoop(works[i], group, settings, timing.iterations, gpuLoops[i].get()), group);
      const std::vector<double> samples = combineEach(ranks, settings.average);
      // With barriers, single iterations vary more than loops do: the median is more robust.
      loops[i].push_back(settings.barrier ? median(samples) : mean(samples));
      if (timing.each) append(*timing.each, ranks, settings.perIterationSkip);
      if (settings.check > 0 && round + 1 == settings.repeats) {
        timing.wrong = countWrong(works[i], group, settings);
        timing.checked = true;
      }
      progress();
    }
  }
  for (size_t i = 0; i < works.size(); ++i) {
    timings[i].us = median(loops[i]) - between / (works[i].timesPerIteration * settings.aggregate);
  }
  return timings;
}

}  // namespace seqpar::perf
