// One order of the calls on the ranks of a communicator, which are threads of one process and reach independent calls
// in different orders.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace seqpar::jax {

class OrderedCall {
 public:
  virtual ~OrderedCall() = default;
  // Returns "", or the text of the error.
  virtual std::string run() = 0;
  // After run(), or instead of it with an error. The caller's thread may continue with other work, for long.
  virtual void end(const std::string& error) = 0;
};

// As many threads as tasks that run at a time.
class Threads {
 public:
  void start(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ >= tasks_.size()) {
      changed_.notify_one();
    } else {
      std::thread([this] { work(); }).detach();
    }
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
};

inline void startOnThread(std::function<void()> task) {
  static Threads& threads = *new Threads;  // never destroyed: its threads may wait in it at exit
  threads.start(std::move(task));
}

// The first rank that arrives at a call adds it to the order. A rank arrives at a call after the calls that compute its
// operands, so they precede it in the order. Arriving does not block, so each rank arrives at all calls. Calls run on
// other threads than those that arrive; of one rank, one at a time.
class Order : public std::enable_shared_from_this<Order> {
 public:
  // `timeout`: how long a rank may wait for its own arrival at the next call of the order; 0: forever.
  explicit Order(int32_t ranks, std::chrono::milliseconds timeout = {})
      : timeout_(timeout), next_(ranks), busy_(ranks), waiting_(ranks), since_(ranks) {}

  // `rank` arrives at `site` in execution `run` of its program; in a loop, again after the call before has ended. With
  // the text of an error, the call fails, and with it the execution.
  void arrive(int32_t rank, int64_t site, int64_t run, std::shared_ptr<OrderedCall> call, std::string error = "") {
    std::unique_lock<std::mutex> lock(mutex_);
    if (const auto failed = failed_.find(run); error.empty() && failed != failed_.end()) error = failed->second;
    if (!error.empty()) {
      auto dropped = fail(run, error);
      lock.unlock();
      dropped.push_back(std::move(call));
      for (const auto& one : dropped) one->end(error);
      return;
    }
    int64_t place = next_[rank];
    while (place < last() && (at(place) != Key{site, run} || waiting_[rank].count(place) != 0)) ++place;
    if (place == last()) order_.push_back({site, run});
    waiting_[rank][place] = std::move(call);
    since_[rank] = Clock::now();
    startNext(rank);
  }

  // Ends the calls that wait, with an error.
  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<OrderedCall>> dropped;
    for (auto& of : waiting_) {
      for (auto& [place, call] : of) dropped.push_back(std::move(call));
      of.clear();
    }
    changed_.notify_all();
    lock.unlock();
    for (const auto& one : dropped) one->end("seqpar: the communicator is closed");
  }

 private:
  using Key = std::pair<int64_t, int64_t>;  // site, execution
  using Clock = std::chrono::steady_clock;

  int64_t last() const { return first_ + static_cast<int64_t>(order_.size()); }
  const Key& at(int64_t place) const { return order_[place - first_]; }

  void startNext(int32_t rank) {  // with mutex_ held, as fail()
    if (busy_[rank]) return;
    while (next_[rank] < last() && failed_.count(at(next_[rank]).second) != 0) ++next_[rank];
    const auto found = waiting_[rank].find(next_[rank]);
    if (found != waiting_[rank].end()) {
      busy_[rank] = true;
      const int64_t run = at(next_[rank]++).second;
      startOnThread(
          [self = shared_from_this(), rank, run, call = std::move(found->second)] { self->run(rank, run, *call); });
      waiting_[rank].erase(found);
    }
    if (!watched_ && timeout_.count() > 0 && isStuck(rank)) {
      watched_ = true;
      startOnThread([self = shared_from_this()] { self->watch(); });
    }
    for (const int64_t end = *std::min_element(next_.begin(), next_.end()); first_ < end; ++first_) order_.pop_front();
  }

  // Without one rank's call, the others of its execution may never arrive. Returns those that wait.
  std::vector<std::shared_ptr<OrderedCall>> fail(int64_t run, const std::string& error) {
    std::vector<std::shared_ptr<OrderedCall>> dropped;
    failed_.emplace(run, error);
    for (size_t rank = 0; rank < waiting_.size(); ++rank) {
      for (auto one = waiting_[rank].begin(); one != waiting_[rank].end();) {
        const bool ends = at(one->first).second == run;
        if (ends) dropped.push_back(std::move(one->second));
        one = ends ? waiting_[rank].erase(one) : std::next(one);
      }
    }
    for (size_t rank = 0; rank < waiting_.size(); ++rank) startNext(static_cast<int32_t>(rank));
    return dropped;
  }

  // Calls wait, until the rank arrives at another call that precedes them in the order.
  bool isStuck(size_t rank) const { return !busy_[rank] && !waiting_[rank].empty(); }

  // While ranks are stuck: ends executions with calls at which a rank has not arrived within the timeout.
  void watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      size_t first = waiting_.size();
      for (size_t rank = 0; rank < waiting_.size(); ++rank) {
        if (isStuck(rank) && (first == waiting_.size() || since_[rank] < since_[first])) first = rank;
      }
      watched_ = first < waiting_.size();
      if (!watched_) return;
      if (const auto end = since_[first] + timeout_; Clock::now() < end) {
        changed_.wait_until(lock, end);
        continue;
      }
      since_[first] = Clock::now();
      const std::string error = "seqpar: rank " + std::to_string(first) + " did not arrive within " +
                                std::to_string(timeout_.count()) +
                                " ms at a call that other devices started: devices run different calls";
      const auto dropped = fail(at(next_[first]).second, error);
      lock.unlock();
      for (const auto& one : dropped) one->end(error);
      lock.lock();
    }
  }

  void run(int32_t rank, int64_t run, OrderedCall& call) {
    const std::string error = call.run();
    std::vector<std::shared_ptr<OrderedCall>> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      busy_[rank] = false;
      since_[rank] = Clock::now();
      if (!error.empty()) dropped = fail(run, error);
      startNext(rank);
    }
    call.end(error);
    for (const auto& one : dropped) one->end(error);
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;  // no rank is stuck any longer
  std::deque<Key> order_;            // from place first_ on
  int64_t first_ = 0;
  std::vector<int64_t> next_;                                             // of each rank: the place of its next call
  std::vector<bool> busy_;                                                // ranks with a call that runs
  std::vector<std::map<int64_t, std::shared_ptr<OrderedCall>>> waiting_;  // of each rank: by place
  std::vector<Clock::time_point> since_;   // of each rank: its last arrival, or end of a call
  std::map<int64_t, std::string> failed_;  // executions with an error
  bool watched_ = false;                   // watch() runs
};

}  // namespace seqpar::jax
