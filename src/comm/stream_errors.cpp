#include "comm/stream_errors.h"

#include <algorithm>
#include <new>
#include <utility>

namespace seqpar {
namespace {

bool isReported(const std::shared_ptr<StreamFailure>& failure) {
  return failure->reported.load();
}

// A copy of the stored Error would share its text with other threads, by a count in the C++ library that the thread
// sanitizer does not see.
[[noreturn]] void raise(const StreamFailure& failure) {
  throw Error(failure.error.result(), failure.error.what());
}

}  // namespace

void throwFirst(const StreamFailures& failures) {
  if (!failures.empty()) raise(*failures.front());
}

/// Errors that another stream has thrown neither spoil later work nor go to further streams, but report() must not
/// return success because of them.
void StreamErrors::dropReported() {
  const auto first = std::find_if(failures_.begin(), failures_.end(), isReported);
  if (first == failures_.end()) return;
  if (dropped_ == nullptr) dropped_ = *first;
  std::erase_if(failures_, isReported);
  std::erase_if(own_, isReported);
}

void StreamErrors::keep(seqparResult_t result, const std::string& text, bool spoils) {
  const std::lock_guard lock(mutex_);
  dropReported();
  // An inherited error does not hide one of this stream: it is dropped once another stream has thrown it.
  const bool known = std::any_of(own_.begin(), own_.end(), [spoils](auto& f) { return !spoils || f->spoils; });
  if (!known) {
    own_.reserve(own_.size() + 1);
    failures_.push_back(std::make_shared<StreamFailure>(Error(result, text), spoils));
    own_.push_back(failures_.back());
  }
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
  dropReported();
  for (const auto& failure : failures) {
    if (std::find(failures_.begin(), failures_.end(), failure) == failures_.end()) failures_.push_back(failure);
  }
  any_.store(noMemory_ || dropped_ != nullptr || !failures_.empty(), std::memory_order_release);
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
  std::shared_ptr<const StreamFailure> dropped;
  bool noMemory = false;
  {
    const std::lock_guard lock(mutex_);
    failures.swap(failures_);
    own_.clear();
    dropped.swap(dropped_);
    noMemory = std::exchange(noMemory_, false);
    any_.store(false, std::memory_order_release);
  }
  for (const auto& failure : failures) failure->reported.store(true);
  if (dropped != nullptr) raise(*dropped);
  throwFirst(failures);
  if (noMemory) throw std::bad_alloc();
}

}  // namespace seqpar
