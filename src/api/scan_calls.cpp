#include "api/scan_calls.h"

namespace seqpar {
namespace {

bool same(const seqparAllScanParams_t& a, const seqparAllScanParams_t& b) {
  return a.dk == b.dk && a.dv == b.dv && a.heads == b.heads && a.direction == b.direction && a.op == b.op &&
         a.stateType == b.stateType && a.wireType == b.wireType && a.decayForm == b.decayForm &&
         a.sequences == b.sequences && a.flags == b.flags && a.algorithm == b.algorithm && a.blocks == b.blocks &&
         a.bounded == b.bounded;
}

}  // namespace

const ScanCall* ScanCalls::find(const seqparAllScanParams_t& params) const noexcept {
  const size_t latest = latest_.load(std::memory_order_relaxed);
  const ScanCall* call = calls_[latest].load(std::memory_order_acquire);
  if (call == nullptr) return nullptr;
  if (same(call->params, params)) return call;
  for (size_t i = 0; i < kMost; ++i) {
    call = calls_[i].load(std::memory_order_acquire);
    if (call == nullptr) return nullptr;
    if (!same(call->params, params)) continue;
    latest_.store(i, std::memory_order_relaxed);
    return call;
  }
  return nullptr;
}

bool ScanCalls::lacks(const seqparAllScanParams_t& params) const noexcept {
  return calls_[kMost - 1].load(std::memory_order_acquire) == nullptr && find(params) == nullptr;
}

void ScanCalls::add(ScanCall call) {
  const std::lock_guard lock(adding_);
  if (!lacks(call.params)) return;
  const auto& kept = owned_.emplace_back(std::make_unique<const ScanCall>(std::move(call)));
  calls_[owned_.size() - 1].store(kept.get(), std::memory_order_release);
}

}  // namespace seqpar
