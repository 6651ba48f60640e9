// The C boundary: exceptions become results, and their texts are kept for seqparGetLastError().
#pragma once

#include <new>
#include <string>
#include <utility>

#include "api/handles.h"
#include "base/error.h"

namespace seqpar {

/// The calling thread's latest error text.
std::string& threadError();

/// `text` with the call in front, unless it begins with it.
std::string named(const char* call, const std::string& text);

/// Runs `body`; its exceptions become results.
template <typename Body>
seqparResult_t atBoundary(const char* call, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return seqparSuccess;
  } catch (const Error& error) {
    // InProgress is an answer, not a failure.
    if (error.result() != seqparInProgress) threadError() = named(call, error.what());
    return error.result();
  } catch (const std::bad_alloc&) {
    threadError() = concat(call, ": out of memory");
    return seqparSystemError;
  } catch (const std::exception& error) {
    threadError() = concat(call, ": ", error.what());
    return seqparInternalError;
  }
}

/// A thread's stay inside a call on a communicator, so that Abort knows when it has left.
class Stay {
 public:
  explicit Stay(std::shared_ptr<CommEntry> entry) : entry_(std::move(entry)) { entry_->callers.fetch_add(1); }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;
  ~Stay() {
    if (entry_->callers.fetch_sub(1) == 1) entry_->callers.notify_all();
  }

 private:
  std::shared_ptr<CommEntry> entry_;
};

/// atBoundary() for a call on a communicator: body(CommEntry&).
template <typename Body>
seqparResult_t onEntry(const char* call, seqparComm_t handle, Body&& body) noexcept {
  std::shared_ptr<CommEntry> entry;
  const auto result = atBoundary(call, [&] {
    entry = require(comms(), handle, call, "comm", "communicator");
    const Stay stay(entry);
    std::forward<Body>(body)(*entry);
  });
  if (result != seqparSuccess && entry) {
    const std::lock_guard lock(entry->mutex);
    entry->lastError = threadError();
  }
  return result;
}

/// onEntry() for calls that need the communicator only: body(Communicator&).
template <typename Body>
seqparResult_t onComm(const char* call, seqparComm_t handle, Body&& body) noexcept {
  return onEntry(call, handle, [&](CommEntry& entry) { body(*entry.comm); });
}

/// Throws InvalidArgument if `pointer` is null.
void requirePointer(const char* call, const char* argument, const void* pointer);

}  // namespace seqpar
