// Caches of checked and prepared calls. Checks, choices and preparation take longer than a small operation.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace seqpar {

inline uint64_t newCallId() noexcept {
  static std::atomic<uint64_t> latest{0};
  return latest.fetch_add(1, std::memory_order_relaxed) + 1;
}

/// The calls of one kind on one communicator. Call::Key identifies a call; Call::matches(Key, Key) compares.
template <typename Call>
class KnownCalls {
 public:
  using Key = typename Call::Key;

  /// The call with this key, or null. Takes no lock.
  const Call* find(const Key& key) const noexcept {
    const Call* call = calls_[latest_.load(std::memory_order_relaxed)].load(std::memory_order_acquire);
    if (call == nullptr || Call::matches(call->key, key)) return call;
    for (size_t i = 0; i < kMost; ++i) {
      call = calls_[i].load(std::memory_order_acquire);
      if (call == nullptr) return nullptr;
      if (!Call::matches(call->key, key)) continue;
      latest_.store(i, std::memory_order_relaxed);
      return call;
    }
    return nullptr;
  }

  /// True if the cache has space and no call with this key.
  bool lacks(const Key& key) const noexcept {
    return calls_[kMost - 1].load(std::memory_order_acquire) == nullptr && find(key) == nullptr;
  }

  /// Adds a call if lacks(), with a new Call::id, different from all others of the process and from 0.
  void add(Call call) {
    const std::lock_guard lock(adding_);
    if (!lacks(call.key)) return;
    call.id = newCallId();
    const auto& kept = owned_.emplace_back(std::make_unique<const Call>(std::move(call)));
    calls_[owned_.size() - 1].store(kept.get(), std::memory_order_release);
  }

 private:
  /// Further calls are checked each time.
  static constexpr size_t kMost = 64;

  std::array<std::atomic<const Call*>, kMost> calls_{};  ///< filled in order, entries stay
  mutable std::atomic<size_t> latest_{0};                ///< index of the latest result of find()
  std::mutex adding_;
  std::vector<std::unique_ptr<const Call>> owned_;
};

}  // namespace seqpar
