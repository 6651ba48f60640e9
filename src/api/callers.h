// The threads that are inside calls on a communicator. The end of the communicator waits for them.
#pragma once

#include <array>
#include <atomic>

#include "base/asymmetric_fence.h"

namespace seqpar {

/// enter() and leave() store, then load; so does close(): at least one of two threads sees the other's store.
class Callers {
 public:
  /// The number of calls that a thread is inside. Only its thread writes it, so that counting is no atomic addition.
  struct alignas(64) Place {
    std::atomic<int> inside{0};
    std::atomic<bool> taken{false};
  };

  /// A place for the calling thread; null if none is free: calls then count at the common place.
  Place* take() noexcept {
    for (Place& place : places_) {
      if (!place.taken.load(std::memory_order_relaxed) && !place.taken.exchange(true)) return &place;
    }
    return nullptr;
  }
  /// Another thread may have the place from now on, except if the thread is still inside a call.
  static void giveBack(Place* place) noexcept {
    if (place != nullptr && place->inside.load(std::memory_order_relaxed) == 0) place->taken.store(false);
  }

  /// False if the communicator has been closed.
  bool enter(Place* place) noexcept {
    if (place == nullptr) {
      common_.inside.fetch_add(1);
    } else {
      place->inside.store(place->inside.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      lightFence();
    }
    if (open_.load(std::memory_order_acquire)) return true;
    leave(place);
    return false;
  }
  void leave(Place* place) noexcept {
    Place& counted = place == nullptr ? common_ : *place;
    if (place == nullptr) {
      common_.inside.fetch_sub(1);
    } else {
      place->inside.store(place->inside.load(std::memory_order_relaxed) - 1, std::memory_order_release);
      lightFence();
    }
    if (!open_.load(std::memory_order_relaxed)) counted.inside.notify_all();
  }
  /// Rejects new calls and waits until all calls have left.
  void close() noexcept {
    open_.store(false);
    heavyFence();
    awaitNone(common_);
    for (const Place& place : places_) awaitNone(place);
  }

 private:
  /// Threads of most programs; more share one place.
  static constexpr size_t kPlaces = 8;

  static void awaitNone(const Place& place) noexcept {
    for (int inside = place.inside.load(); inside != 0; inside = place.inside.load()) place.inside.wait(inside);
  }

  std::array<Place, kPlaces> places_{};
  Place common_;
  std::atomic<bool> open_{true};
};

}  // namespace seqpar
