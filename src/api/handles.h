// The handles of the C interface.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/handle_table.h"
#include "comm/communicator.h"
#include "comm/stream.h"
#include "scan/plan/planner.h"

namespace seqpar {

/// A communicator with what the C interface keeps beside it.
class CommEntry {
 public:
  explicit CommEntry(std::shared_ptr<Communicator> made);

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

/// A collective's `stream` argument on `comm`.
CallerStream callerStream(const char* call, void* stream, const Communicator& comm);

/// The host stream behind a collective's `stream` argument; null for NULL.
std::shared_ptr<HostStream> findStream(const char* call, void* stream);

}  // namespace seqpar
