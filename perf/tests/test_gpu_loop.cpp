#include <catch2/catch.hpp>
#include <cstring>

#include "common/gpu_loop.h"

using namespace seqpar::perf;

namespace {

/// A simulated GPU: its time advances only by enqueued work.
class FakeGpu : public Gpu {
 public:
  static constexpr double kBarrierUs = 2, kFirstUs = 100;

  void spend(double us) { now_ += us; }
  double now() const { return now_; }
  int launches = 0;

  std::string name() const override { return "fake"; }
  int sharing() const override { return 1; }
  void* stream() const override { return nullptr; }
  void synchronize() override {}
  void barrier() override { spend(kBarrierUs); }
  double elapsedUs(const std::function<void()>& enqueue) override {
    const double start = now_;
    enqueue();
    return now_ - start;
  }
  std::vector<double> eachUs(int count, bool apart, const std::function<void()>& enqueue) override {
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      if (apart) barrier();
      times.push_back(elapsedUs(enqueue));
    }
    return times;
  }
  std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) override {
    const double before = now_;
    enqueue();
    const double us = now_ - before;
    now_ = before;
    return std::make_unique<FakeGraph>(*this, us);
  }
  std::unique_ptr<Window> window(size_t) override { return nullptr; }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  LinkLimits limits() override { return {}; }

 private:
  class FakeGraph : public Graph {
   public:
    FakeGraph(FakeGpu& gpu, double us) : gpu_(gpu), us_(us) {}
    void launch() override {
      gpu_.spend(us_ + (first_ ? kFirstUs : 0));
      first_ = false;
      ++gpu_.launches;
    }

   private:
    FakeGpu& gpu_;
    double us_;
    bool first_ = true;
  };

  double now_ = 0;
};

class OneRank : public Group {
 public:
  OneRank() : Group(0, 1) {
    auto gpu = std::make_unique<FakeGpu>();
    fake = gpu.get();
    setGpu(std::move(gpu));
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::memcpy(all.data(), mine.data(), mine.size());
  }
  void barrier() override {}

  FakeGpu* fake;
};

Timing timeOf(OneRank& group, const Settings& settings, double us, double timesPerIteration = 1) {
  Work work;
  work.prepare = [] {};
  work.run = [&group, us] { group.fake->spend(us); };
  work.wrong = [] { return size_t{0}; };
  work.timesPerIteration = timesPerIteration;
  return measure(std::span(&work, 1), group, settings, [] {})[0];
}

}  // namespace

TEST_CASE("The timed loop on a GPU reports one iteration without its barriers") {
  Settings settings;
  settings.gpu = true;
  settings.barrier = GENERATE(false, true);
  settings.graphLaunches = GENERATE(0, 1, 3);
  settings.aggregate = GENERATE(1, 4);
  settings.iterations = GENERATE(1, 20);
  CAPTURE(settings.barrier, settings.graphLaunches, settings.iterations, settings.aggregate);
  OneRank group;
  CHECK(timeOf(group, settings, 5).us == Approx(5));
  CHECK(timeOf(group, settings, 5, 2).us == Approx(2.5));
  CHECK((group.fake->launches > 0) == settings.graph());
  CHECK(barrierUs(group, settings) == Approx(settings.barrier ? FakeGpu::kBarrierUs : 0));
}

TEST_CASE("Times of single iterations exclude the barrier") {
  Settings settings;
  settings.gpu = settings.perIteration = true;
  settings.barrier = GENERATE(false, true);
  CAPTURE(settings.barrier);
  OneRank group;
  settings.aggregate = GENERATE(1, 3);
  settings.perIterationSkip = 2;
  const Timing timing = timeOf(group, settings, 5);
  CHECK(timing.us == Approx(5));
  REQUIRE(timing.each);
  CHECK(timing.each->slowest.size() == static_cast<size_t>(settings.iterations * settings.repeats));
  CHECK(timing.each->counted.size() == static_cast<size_t>((settings.iterations - 2) * settings.repeats));
  REQUIRE(timing.each->ofRank.size() == 1);
  for (const double us : timing.each->ofRank[0]) CHECK(us == Approx(5));
  CHECK(barrierUs(group, settings) == 0);
}
