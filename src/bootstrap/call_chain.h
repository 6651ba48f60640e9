// Digests of a rank's collective calls in order. Ranks compare them with their heartbeats: calls that differ may wait
// for each other, or send each other messages that fit.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace seqpar {

/// Digests of calls 1 to n, for some n: the latest ones, and so many multiples of some powers of two that two ranks
/// have one in common although one of them is many calls ahead.
struct CallReport {
  static constexpr size_t kLatest = 32;
  static constexpr size_t kOfStep = 2;
  static constexpr std::array<uint64_t, 4> kSteps = {1 << 8, 1 << 12, 1 << 16, 1 << 20};
  static constexpr size_t kDigests = kLatest + kOfStep * kSteps.size();

  uint64_t calls = 0;                        ///< so far
  std::array<uint32_t, kDigests> digests{};  ///< of the calls callAt()

  /// The call of digests[i]; 0: there is none.
  uint64_t callAt(size_t i) const {
    if (i < kLatest) return calls > i ? calls - i : 0;
    const uint64_t step = kSteps[(i - kLatest) / kOfStep], age = (i - kLatest) % kOfStep;
    return calls / step > age ? (calls / step - age) * step : 0;
  }
  /// Null if the report has no digest of calls 1 to `call`.
  const uint32_t* find(uint64_t call) const {
    for (size_t i = 0; i < kDigests; ++i) {
      if (call != 0 && callAt(i) == call) return &digests[i];
    }
    return nullptr;
  }
  bool operator==(const CallReport&) const = default;
};

/// The calls of two ranks that differ.
struct CallDifference {
  uint64_t call = 0;
  bool first = false;  ///< false: an earlier call may differ too
};

/// Nothing if no calls of both reports differ.
inline std::optional<CallDifference> differenceOf(const CallReport& a, const CallReport& b) {
  std::optional<CallDifference> found;
  for (size_t i = 0; i < CallReport::kDigests; ++i) {
    const uint64_t call = a.callAt(i);
    const uint32_t* const other = b.find(call);
    if (other == nullptr || *other == a.digests[i] || (found && found->call <= call)) continue;
    found = {call, call == 1 || (a.find(call - 1) != nullptr && b.find(call - 1) != nullptr)};
  }
  return found;
}

/// One thread at a time adds calls; others read reports.
class CallChain {
 public:
  void add(uint16_t digest) noexcept {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15U;
    latest_ = (latest_ ^ latest_ >> 32 ^ digest) * kFactor + 1;
    const auto whole = static_cast<uint32_t>(latest_ >> 32);
    const uint64_t calls = calls_.load(kRelaxed) + 1, version = version_.load(kRelaxed);
    version_.store(version + 1, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
    digests_[calls % CallReport::kLatest].store(whole, kRelaxed);
    for (size_t i = 0; i < CallReport::kSteps.size() && calls % CallReport::kSteps[i] == 0; ++i) {
      ofSteps_[i][calls / CallReport::kSteps[i] % CallReport::kOfStep].store(whole, kRelaxed);
    }
    calls_.store(calls, kRelaxed);
    version_.store(version + 2, std::memory_order_release);
  }

  /// Further calls are not comparable: those in CUDA graphs are repeated without the host.
  void end() noexcept { ended_.store(true, kRelaxed); }

  /// Nothing after end(), and while another thread adds calls.
  std::optional<CallReport> report() const noexcept {
    if (ended_.load(kRelaxed)) return std::nullopt;
    const uint64_t version = version_.load(std::memory_order_acquire);
    CallReport report;
    report.calls = calls_.load(kRelaxed);
    for (size_t i = 0; i < CallReport::kDigests; ++i) {
      if (const uint64_t call = report.callAt(i)) report.digests[i] = digestAt(i, call).load(kRelaxed);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version % 2 != 0 || version_.load(kRelaxed) != version) return std::nullopt;
    return report;
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;

  const std::atomic<uint32_t>& digestAt(size_t i, uint64_t call) const {
    if (i < CallReport::kLatest) return digests_[call % CallReport::kLatest];
    const size_t step = (i - CallReport::kLatest) / CallReport::kOfStep;
    return ofSteps_[step][call / CallReport::kSteps[step] % CallReport::kOfStep];
  }

  uint64_t latest_ = 0;
  std::atomic<uint64_t> version_{0};  ///< odd while a call is added
  std::atomic<uint64_t> calls_{0};
  std::array<std::atomic<uint32_t>, CallReport::kLatest> digests_{};
  std::array<std::array<std::atomic<uint32_t>, CallReport::kOfStep>, CallReport::kSteps.size()> ofSteps_{};
  std::atomic<bool> ended_{false};
};

}  // namespace seqpar
