#include "base/health.h"

#include "base/log.h"

namespace seqpar {

std::string Health::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

void Health::onFailure(std::function<void(seqparResult_t, const std::string&)> hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

bool Health::fail(seqparResult_t result, const std::string& text) noexcept {
  std::function<void(seqparResult_t, const std::string&)> hook;
  {
    const std::lock_guard lock(mutex_);
    if (!ok()) return false;
    text_ = text;
    result_.store(result, std::memory_order_release);
    hook = hook_;
  }
  log(LogLevel::Warn, text);
  if (hook) hook(result, text);
  return true;
}

void Health::raise() const {
  throw Error(result(), text());
}

}  // namespace seqpar
