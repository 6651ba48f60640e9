#include "random_run.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace seqpar::attn::test {
namespace {

RandomTimes times;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Cases in order. Other threads draw them ahead of time, a limited number.
class Ahead {
 public:
  using Make = std::function<std::unique_ptr<RandomCase>(uint64_t index)>;

  Ahead(std::vector<uint64_t> indices, unsigned threads, Make make)
      : indices_(std::move(indices)), most_(4 * threads), make_(std::move(make)) {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;
  ~Ahead() {
    {
      const std::lock_guard lock(mutex_);
      next_ = indices_.size();
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  /// The case indices[place]. Rethrows an exception of its thread.
  std::unique_ptr<RandomCase> take(size_t place) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_.contains(place); });
    auto made = std::move(ready_.extract(place).mapped());
    taken_ = place + 1;
    changed_.notify_all();
    if (made.failed) std::rethrow_exception(made.failed);
    return std::move(made.random);
  }

 private:
  struct Made {
    std::unique_ptr<RandomCase> random;
    std::exception_ptr failed;
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return next_ >= indices_.size() || next_ < taken_ + most_; });
      if (next_ >= indices_.size()) return;
      const size_t place = next_++;
      lock.unlock();
      Made made;
      try {
        made.random = make_(indices_[place]);
      } catch (...) {
        made.failed = std::current_exception();
      }
      lock.lock();
      ready_[place] = std::move(made);
      changed_.notify_all();
    }
  }

  const std::vector<uint64_t> indices_;
  const size_t most_;
  const Make make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0, taken_ = 0;
  std::map<size_t, Made> ready_;
  std::vector<std::thread> threads_;
};

}  // namespace

const RandomTimes& randomTimes() {
  return times;
}

std::vector<std::string> runRandomCases(const RandomRun& run, const RandomRanks& on) {
  constexpr size_t kMostFailures = 10;
  const int ranks = on.ranks->size();
  std::vector<uint64_t> indices;
  for (uint64_t i = 0; i < run.cases; ++i) {
    const bool expected = run.only < 0 || i == static_cast<uint64_t>(run.only);
    if (expected && 1 + static_cast<int>(i % kMostRandomRanks) == ranks) indices.push_back(i);
  }
  const RandomPlace place{ranks, run.onDevice, (*on.ranks)[0]};
  Ahead ahead(indices, run.threads, [&](uint64_t index) {
    auto made = drawCase(run.kind, run.seed, index, place);
    made->expect();
    return made;
  });
  std::vector<std::string> failures;
  for (size_t i = 0; i < indices.size() && failures.size() < kMostFailures; ++i) {
    const double begin = now();
    const auto random = ahead.take(i);
    const double ready = now();
    const auto said = random->run(*on.ranks, on.placement());
    const double done = now();
    const auto wrong = said.empty() ? random->differences() : said;
    times.waiting += ready - begin;
    times.running += done - ready;
    times.comparing += now() - done;
    ++times.cases;
    if (wrong.empty()) continue;
    failures.push_back("seed " + std::to_string(run.seed) + ", case " + std::to_string(indices[i]) + ", " +
                       std::to_string(ranks) + " ranks: " + wrong + "\n  " + random->text());
    if (!said.empty()) break;
  }
  return failures;
}

}  // namespace seqpar::attn::test
