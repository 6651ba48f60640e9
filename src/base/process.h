// The process, and what a fork leaves of it: a child has its parent's memory, but only the thread that forked.
#pragma once

#include <atomic>
#include <memory>

namespace seqpar {

/// The number of forks between the loading of this library and this process.
unsigned forks() noexcept;

/// The process's only Object, never destroyed: a program may exit while threads still use it. A forked child gets a new
/// one, because another thread of its parent may have locked the old one.
template <typename Object>
Object& ofProcess() {
  struct Generation {
    unsigned forks = seqpar::forks();
    Object object{};
    Generation* parent = nullptr;  // not a leak
  };
  static std::atomic<Generation*> latest{std::make_unique<Generation>().release()};
  Generation* current = latest.load(std::memory_order_acquire);
  while (current->forks != forks()) {
    auto made = std::make_unique<Generation>();
    made->parent = current;
    if (latest.compare_exchange_strong(current, made.get())) current = made.release();
  }
  return current->object;
}

}  // namespace seqpar
