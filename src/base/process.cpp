#include "base/process.h"

#include <pthread.h>

namespace seqpar {
namespace {

std::atomic<unsigned> count{0};

[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

unsigned forks() noexcept {
  return count.load(std::memory_order_relaxed);
}

}  // namespace seqpar
