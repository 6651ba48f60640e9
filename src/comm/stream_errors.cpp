#include "comm/stream_errors.h"

#include <algorithm>
#include <new>
#include <utility>

namespace seqpar {
namespace {

bool isReported(const std::shared_ptr<StreamFailure>& failure) {
  return failure->reported.load();
}

}  // namespace

void throwFirst(const StreamFailures& failures) {
  if (!failures.empty()) throw Error(failures.front()->error);
}

void StreamErrors::keep(seqparResult_t result, const std::string& text, bool spoils) {
  const std::lock_guard lock(mutex_);
  std::erase_if(failures_, isReported);
  const bool known =
      spoils ? std::any_of(failures_.begin(), failures_.end(), [](auto& f) { return f->spoils; }) : !failures_.empty();
  if (!known) failures_.push_back(std::make_shared<StreamFailure>(Error(result, text), spoils));
  any_.store(true, std::memory_order_release);
}

void StreamErrors::keepNoMemory() noexcept {
  const std::lock_guard lock(mutex_);
  noMemory_ = true;
  any_.store(true, std::memory_order_release);
}

StreamFailures StreamErrors::unreported() const {
  if (!any_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  StreamFailures all = failures_;
  std::erase_if(all, isReported);
  return all;
}

void StreamErrors::inherit(const StreamFailures& failures) {
  if (failures.empty() && !any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(failures_, isReported);
  for (const auto& failure : failures) {
    if (std::find(failures_.begin(), failures_.end(), failure) == failures_.end()) failures_.push_back(failure);
  }
  any_.store(noMemory_ || !failures_.empty(), std::memory_order_release);
}

std::shared_ptr<const StreamFailure> StreamErrors::spoiled() const {
  if (!any_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& failure : failures_) {
    if (failure->spoils) return failure;
  }
  return nullptr;
}

void StreamErrors::report() {
  if (!any_.load(std::memory_order_acquire)) return;
  StreamFailures failures;
  bool noMemory = false;
  {
    const std::lock_guard lock(mutex_);
    failures.swap(failures_);
    noMemory = std::exchange(noMemory_, false);
    any_.store(false, std::memory_order_release);
  }
  for (const auto& failure : failures) failure->reported.store(true);
  throwFirst(failures);
  if (noMemory) throw std::bad_alloc();
}

}  // namespace seqpar
