#include "api/boundary.h"
#include "base/thread_object.h"
#include "base/thread_variable.h"

namespace seqpar {
namespace {

/// The communicator that a thread used last: most threads use only one, and looking it up in the table would be a large
/// part of a small message's latency. Holding the entry keeps its address from being reused.
class Recent {
 public:
  /// True if this is the latest communicator, which is not closed.
  static bool is(seqparComm_t handle) noexcept { return handle == handle_ && handle != nullptr && forks_ == forks(); }
  static CommEntry* entry() noexcept { return entry_; }
  /// The thread's place among the callers of entry().
  static Callers::Place* place() noexcept { return place_; }
  static void keep(seqparComm_t handle, std::shared_ptr<CommEntry> entry) {
    Owner& owner = ofThread<Owner>();
    handle_ = handle;
    forks_ = forks();
    owner.replace(std::move(entry));
  }

 private:
  struct Owner {
    std::shared_ptr<CommEntry> entry;
    void replace(std::shared_ptr<CommEntry> other) noexcept {
      Callers::giveBack(place_);
      place_ = other == nullptr ? nullptr : other->callers.take();
      entry_ = other.get();
      entry = std::move(other);
    }
    ~Owner() {
      handle_ = nullptr;
      replace(nullptr);
    }
  };

  SEQPAR_THREAD_VARIABLE static inline thread_local constinit seqparComm_t handle_ = nullptr;
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit CommEntry* entry_ = nullptr;
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit Callers::Place* place_ = nullptr;
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit unsigned forks_ = 0;
};

}  // namespace

CallGuard::CallGuard(const char* call, seqparComm_t handle) {
  if (!Recent::is(handle) || !Recent::entry()->callers.enter(Recent::place())) {
    Recent::keep(nullptr, nullptr);
    Recent::keep(handle, require(comms(), handle, call, "comm", "communicator"));
    if (!Recent::entry()->callers.enter(Recent::place())) {
      Recent::keep(nullptr, nullptr);
      fail(seqparInvalidArgument, call, ": comm is being destroyed; expected a communicator in use");
    }
    reserveText(threadError());
  }
  entry_ = Recent::entry();
  place_ = Recent::place();
  scope_.emplace(entry_->comm->calls(), call);
}

void CallTrace::write(seqparResult_t result) const noexcept {
  try {
    const std::string about = CallScope::takeDescription();
    log(LogLevel::Trace, call_, about.empty() ? "" : " (", about, about.empty() ? "" : ")", ": ",
        seqparGetErrorString(result));
  } catch (const std::bad_alloc&) {
    return;  // drop the line: a call must not fail because of its log
  }
}

void keepError(seqparComm_t handle) noexcept {
  const auto entry = comms().find(handle);
  if (!entry) return;
  const std::lock_guard lock(entry->mutex);
  if (!entry->callers.enter(nullptr)) return;
  const auto& health = entry->comm->health();
  entry->comm->keepError(threadError());
  try {
    if (entry->ending.empty() && !health.ok() && threadError().ends_with(health.text())) {
      entry->ending = threadError();
      entry->comm->calls().write(health.text());  // again: now the log knows which call waited
    }
  } catch (const std::bad_alloc&) {
    entry->ending.clear();
  }
  entry->callers.leave(nullptr);
}

std::string& threadError() noexcept {
  struct Latest {
    std::string text;
  };
  return ofThread<Latest>().text;
}

void setThreadError(const char* call, std::string_view text) noexcept {
  assignCallText(threadError(), call, text);
}

}  // namespace seqpar
