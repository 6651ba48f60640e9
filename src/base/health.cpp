#include "base/health.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "base/memory.h"

namespace seqpar {

Health::Health() {
  text_.reserve(kReservedText);
}

std::string Health::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

void Health::onFailure(Hook hook) {
  auto shared = hook ? std::make_shared<const Hook>(std::move(hook)) : nullptr;
  const std::lock_guard lock(mutex_);
  hook_ = std::move(shared);
}

void Health::awaitFailure(std::chrono::milliseconds limit) const {
  constexpr std::chrono::milliseconds kPause{1};
  for (const Deadline deadline(limit); ok() && !deadline.passed();) std::this_thread::sleep_for(kPause);
}

bool Health::fail(seqparResult_t result, std::string_view text) noexcept {
  std::shared_ptr<const Hook> hook;
  {
    const std::lock_guard lock(mutex_);
    if (!ok()) return false;
    assignText(text_, text);
    result_.store(result, std::memory_order_release);
    hook = hook_;
  }
  log(LogLevel::Warn, text);
  try {
    if (hook) (*hook)(result, text_);  // text_ no longer changes
  } catch (const std::bad_alloc&) {
    log(LogLevel::Warn, kNoMemory);
  }
  return true;
}

void Health::raise() const {
  throw Error(result(), text());
}

}  // namespace seqpar
