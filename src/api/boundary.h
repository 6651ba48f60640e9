// The C boundary: converts exceptions to results, and stores their texts for seqparGetLastError().
#pragma once

#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/handles.h"
#include "base/arguments.h"
#include "base/current_call.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/nvtx.h"
#include "comm/call_log.h"

namespace seqpar {

/// The calling thread's latest error text.
std::string& threadError() noexcept;
/// Sets it: `text` with the call's name as prefix, unless `text` already starts with it.
void setThreadError(const char* call, std::string_view text) noexcept;

/// Logs a call's arguments and result at SEQPAR_DEBUG=TRACE.
class CallTrace {
 public:
  explicit CallTrace(const char* call) noexcept : call_(call) {}
  seqparResult_t result(seqparResult_t result) const noexcept {
    if (logs(LogLevel::Trace)) write(result);
    return result;
  }

 private:
  void write(seqparResult_t result) const noexcept;
  const char* call_;
};

/// Runs `body`; converts its exceptions to results.
template <typename Body>
seqparResult_t atBoundary(const char* call, Body&& body) noexcept {
  const CurrentCall current(call);
  const nvtx::Range range(call);
  const CallTrace trace(call);
  try {
    std::forward<Body>(body)();
    return trace.result(seqparSuccess);
  } catch (const Error& error) {
    // InProgress is a regular result, not a failure.
    if (error.result() != seqparInProgress) setThreadError(call, error.what());
    return trace.result(error.result());
  } catch (const std::bad_alloc&) {
    setThreadError(call, kNoMemory);
    return trace.result(seqparSystemError);
  } catch (const std::exception& error) {
    setThreadError(call, error.what());
    return trace.result(seqparInternalError);
  }
}

/// RAII scope of a call on a communicator: closing the communicator waits until all calls have left.
class CallGuard {
 public:
  /// InvalidArgument in the name of `call` if `handle` is not a live communicator.
  CallGuard(const char* call, seqparComm_t handle);
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  ~CallGuard() {
    scope_.reset();
    Communicator::dropComparison();
    entry_->callers.leave(place_);
  }

  CommEntry& entry() const { return *entry_; }
  /// Marks the call as successful; default: failed.
  void succeed() noexcept { scope_->succeed(); }

 private:
  CommEntry* entry_ = nullptr;
  Callers::Place* place_ = nullptr;
  std::optional<CallScope> scope_;
};

/// Also stores the calling thread's latest error text in the communicator, if it still exists.
void keepError(seqparComm_t handle) noexcept;

/// atBoundary() for a call on a communicator: body(CommEntry&).
template <typename Body>
seqparResult_t onEntry(const char* call, seqparComm_t handle, Body&& body) noexcept {
  const auto result = atBoundary(call, [&] {
    CallGuard callGuard(call, handle);
    std::forward<Body>(body)(callGuard.entry());
    callGuard.entry().comm->compareAtLast();
    callGuard.succeed();
  });
  if (result != seqparSuccess) keepError(handle);
  return result;
}

/// onEntry() for calls that need only the communicator: body(Communicator&).
template <typename Body>
seqparResult_t onComm(const char* call, seqparComm_t handle, Body&& body) noexcept {
  return onEntry(call, handle, [&](CommEntry& entry) { body(*entry.comm); });
}

}  // namespace seqpar
