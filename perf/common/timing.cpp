#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "gpu_loop.h"

namespace seqpar::perf {
namespace {

using Clock = std::chrono::steady_clock;

double usSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void runOnce(Work& work) {
  work.run();
  if (work.finish) work.finish();
}

/// Warms up and decides, equally on all ranks, how many iterations a loop has.
int planLoop(Work& work, Group& group, const Settings& settings) {
  work.prepare();
  runOnce(work);
  double slowest = 0;
  int runs = 0;
  // Once the time of a loop is used up, further warming would only keep the user waiting.
  while (runs < std::max(settings.warmup, 1) && (settings.loopSeconds == 0 || slowest * runs < settings.loopSeconds)) {
    group.barrier();
    const auto start = Clock::now();
    runOnce(work);
    const double seconds = usSince(start) * 1e-6;
    const std::vector<double> all = group.gather(std::span(&seconds, 1));
    slowest = *std::max_element(all.begin(), all.end());
    ++runs;
  }
  if (settings.loopSeconds == 0 || slowest * settings.iterations <= settings.loopSeconds) return settings.iterations;
  return std::max(1, static_cast<int>(settings.loopSeconds / slowest));
}

/// The samples of a loop of the host: one for each iteration, or one mean.
std::vector<double> timeOnHost(Work& work, Group& group, const Settings& settings, int iterations) {
  std::vector<double> samples;
  if (settings.barrier || settings.perIteration) {
    samples.reserve(static_cast<size_t>(iterations));
    for (int i = 0; i < iterations; ++i) {
      if (settings.barrier) group.barrier();
      const auto start = Clock::now();
      runOnce(work);
      samples.push_back(usSince(start));
    }
  } else {
    const auto start = Clock::now();
    for (int i = 0; i < iterations; ++i) work.run();
    if (work.finish) work.finish();
    samples.push_back(usSince(start) / iterations);
  }
  return samples;
}

/// The times of a loop on this rank. `loop` is that of its GPU, null on the host.
std::vector<double> timeLoop(Work& work, Group& group, const Settings& settings, int iterations, GpuLoop* loop) {
  work.prepare();
  group.barrier();
  std::vector<double> samples = loop != nullptr ? loop->time() : timeOnHost(work, group, settings, iterations);
  for (double& sample : samples) sample = work.takesPart ? sample / work.timesPerIteration : Timing::kNone;
  return samples;
}

/// The samples of all ranks, combined one by one.
std::vector<double> agree(const std::vector<double>& mine, Group& group, Average how) {
  const std::vector<double> all = group.gather(std::span(mine));
  std::vector<double> agreed(mine.size());
  std::vector<double> ranks(static_cast<size_t>(group.size()));
  for (size_t i = 0; i < mine.size(); ++i) {
    for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = all[r * mine.size() + i];
    agreed[i] = combine(ranks, how);
  }
  return agreed;
}

size_t countWrong(Work& work, Group& group) {
  if (!work.repeatable) {
    work.prepare();
    group.barrier();
    runOnce(work);
  }
  const double mine = work.takesPart ? static_cast<double>(work.wrong()) : 0.0;
  double sum = 0;
  for (const double rank : group.gather(std::span(&mine, 1))) sum += rank;
  return static_cast<size_t>(sum);
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

double combine(std::span<const double> ranks, Average how) {
  if (how == Average::Rank0) return ranks[0];
  std::vector<double> valid;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(valid), [](double value) { return !std::isnan(value); });
  if (valid.empty()) return Timing::kNone;
  if (how == Average::Mean) return mean(valid);
  return how == Average::Least ? *std::min_element(valid.begin(), valid.end())
                               : *std::max_element(valid.begin(), valid.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto position = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(position, 1, values.size()) - 1];
}

double barrierUs(Group& group, const Settings& settings) {
  // One by one, the barriers are not in the times; on the host nor otherwise.
  if (group.gpu() == nullptr || !settings.barrier || settings.perIteration) return 0;
  GpuLoop loop(*group.gpu(), nullptr, settings, settings.iterations);
  std::vector<double> times;
  for (int round = 0; round < settings.repeats; ++round)
    times.push_back(median(agree(loop.time(), group, settings.average)));
  return median(times);
}

std::vector<Timing> measure(std::span<Work> works, Group& group, const Settings& settings,
                            const std::function<void()>& progress) {
  std::vector<Timing> timings(works.size());
  std::vector<std::vector<double>> loops(works.size()), iterations(works.size());
  std::vector<std::unique_ptr<GpuLoop>> gpuLoops(works.size());
  for (size_t i = 0; i < works.size(); ++i) {
    timings[i].iterations = planLoop(works[i], group, settings);
    if (group.gpu() == nullptr) continue;
    gpuLoops[i] = std::make_unique<GpuLoop>(*group.gpu(), &works[i], settings, timings[i].iterations);
  }
  const double between = barrierUs(group, settings);
  for (int round = 0; round < settings.repeats; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      const std::vector<double> samples =
          agree(timeLoop(works[i], group, settings, timings[i].iterations, gpuLoops[i].get()), group, settings.average);
      // Alone, iterations scatter much further than loops do: the median is the usual one.
      loops[i].push_back(settings.barrier ? median(samples) : mean(samples));
      if (settings.perIteration) iterations[i].insert(iterations[i].end(), samples.begin(), samples.end());
      if (settings.check && round + 1 == settings.repeats) {
        timings[i].wrong = countWrong(works[i], group);
        timings[i].checked = true;
      }
      progress();
    }
  }
  for (size_t i = 0; i < works.size(); ++i) {
    timings[i].us = median(loops[i]) - between / works[i].timesPerIteration;
    if (!settings.perIteration) continue;
    timings[i].minUs = *std::min_element(iterations[i].begin(), iterations[i].end());
    timings[i].maxUs = *std::max_element(iterations[i].begin(), iterations[i].end());
    timings[i].p99Us = quantile(iterations[i], 0.99);
  }
  return timings;
}

}  // namespace seqpar::perf
