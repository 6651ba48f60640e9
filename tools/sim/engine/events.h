// The queue of events on virtual time: equal inputs give equal orders.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace seqpar::sim {

/// Virtual time in picoseconds.
using Time = int64_t;
inline constexpr double kPsPerUs = 1e6;
inline Time fromUs(double us) {
  return static_cast<Time>(us * kPsPerUs + 0.5);
}
inline double toUs(Time time) {
  return static_cast<double>(time) / kPsPerUs;
}

struct Event {
  Time time = 0;
  uint64_t number = 0;  ///< order of creation: breaks ties
  uint32_t kind = 0, object = 0, version = 0;
};

class EventQueue {
 public:
  Time now() const { return now_; }
  bool empty() const { return queue_.empty(); }
  uint64_t count() const { return number_; }

  void add(Time time, uint32_t kind, uint32_t object, uint32_t version = 0) {
    queue_.push({time, number_++, kind, object, version});
  }
  /// Advances the clock to the next event.
  Event next() {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.time;
    return event;
  }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  Time now_ = 0;
  uint64_t number_ = 0;
};

}  // namespace seqpar::sim
