// Handles of the C interface: which are alive, and what they stand for. A handle that is stale, foreign or of another
// kind is found out without touching the memory that it points to.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "comm/communicator.h"
#include "comm/stream.h"
#include "scan/plan/planner.h"

namespace seqpar {

template <typename Object, typename Handle>
class HandleTable {
 public:
  Handle add(std::shared_ptr<Object> object) {
    // NOLINTNEXTLINE: handles are opaque pointers by the C interface; they are compared, never followed.
    const auto handle = reinterpret_cast<Handle>(object.get());
    const std::unique_lock lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }

  /// Null if there is no such object.
  std::shared_ptr<Object> find(Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto entry = objects_.find(handle);
    return entry == objects_.end() ? nullptr : entry->second;
  }

  /// find(), and forgets it.
  std::shared_ptr<Object> remove(Handle handle) {
    const std::unique_lock lock(mutex_);
    const auto node = objects_.extract(handle);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

/// A communicator with what the C interface keeps beside it.
class CommEntry {
 public:
  explicit CommEntry(std::shared_ptr<Communicator> made) : comm(std::move(made)), scans(*comm) {}

  /// Counts the calling thread in; false if the communicator has been closed. Each side stores before it looks, so that
  /// either this sees the closing, or the closing sees the caller.
  bool enter() {
    callers_.fetch_add(1);
    if (open_.load()) return true;
    leave();
    return false;
  }
  void leave() {
    if (callers_.fetch_sub(1) == 1 && !open_.load()) callers_.notify_all();
  }
  /// Lets nobody in any more and waits until all have left.
  void close() {
    open_.store(false);
    for (int inside = callers_.load(); inside != 0; inside = callers_.load()) callers_.wait(inside);
  }

  std::shared_ptr<Communicator> comm;
  ScanPlanner scans;
  std::mutex mutex;
  std::string lastError;  ///< of the latest failed call
  std::string ending;     ///< of the first call that failed because the communicator is lost
  std::string returned;   ///< what seqparGetLastError() handed out

 private:
  std::atomic<int> callers_{0};
  std::atomic<bool> open_{true};
};

HandleTable<CommEntry, seqparComm_t>& comms();
HandleTable<HostStream, seqparStream_t>& streams();
HandleTable<HostEvent, seqparEvent_t>& events();

/// The object of a handle; otherwise InvalidArgument in the name of `call` and `argument`.
template <typename Object, typename Handle>
std::shared_ptr<Object> require(const HandleTable<Object, Handle>& table, Handle handle, const char* call,
                                const char* argument, const char* kind) {
  auto object = handle == nullptr ? nullptr : table.find(handle);
  if (!object) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", static_cast<const void*>(handle), ", expected a ", kind,
         " that was made and not freed");
  }
  return object;
}

/// A collective's `stream` argument on `comm`.
CallerStream callerStream(const char* call, void* stream, const Communicator& comm);

/// The host stream behind a collective's `stream` argument; null for NULL.
std::shared_ptr<HostStream> findStream(const char* call, void* stream);

}  // namespace seqpar
