#include "api/boundary.h"

namespace seqpar {
namespace {

/// The communicator that a thread used last: most threads use one all their lives, and looking it up in the table would
/// be a good part of a small message's latency. Holding the entry keeps its address from being given to another.
struct Recent {
  seqparComm_t handle = nullptr;
  std::shared_ptr<CommEntry> entry;
};

Recent& recent() {
  static thread_local Recent last;
  return last;
}

}  // namespace

CallGuard::CallGuard(const char* call, seqparComm_t handle) : entry_(nullptr) {
  Recent& last = recent();
  if (handle == nullptr || last.handle != handle || !last.entry->enter()) {
    last = {};
    auto entry = require(comms(), handle, call, "comm", "communicator");
    if (!entry->enter()) fail(seqparInvalidArgument, call, ": comm is being destroyed; expected a communicator in use");
    last = {handle, std::move(entry)};
  }
  entry_ = last.entry.get();
  scope_.emplace(entry_->comm->calls(), call);
}

void CallTrace::write(seqparResult_t result) const noexcept {
  try {
    const std::string about = CallScope::takeDescription();
    log(LogLevel::Trace, call_, about.empty() ? "" : " (", about, about.empty() ? "" : ")", ": ",
        seqparGetErrorString(result));
  } catch (const std::bad_alloc&) {
    return;  // a line that cannot be made is not worth a failure
  }
}

void keepError(seqparComm_t handle) {
  if (const auto entry = comms().find(handle)) {
    const std::lock_guard lock(entry->mutex);
    entry->lastError = threadError();
    if (!entry->ending.empty() || !entry->enter()) return;
    const auto& health = entry->comm->health();
    if (!health.ok() && threadError().ends_with(health.text())) {
      entry->ending = threadError();
      entry->comm->calls().write(health.text());  // again: now it is known which call waited in vain
    }
    entry->leave();
  }
}

std::string& threadError() {
  static thread_local std::string text;
  return text;
}

std::string named(const char* call, const std::string& text) {
  return text.rfind(call, 0) == 0 ? text : concat(call, ": ", text);
}

}  // namespace seqpar
