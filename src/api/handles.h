// The handles of the C interface.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "api/exchange_calls.h"
#include "api/scan_calls.h"
#include "base/handle_table.h"
#include "comm/communicator.h"
#include "comm/stream.h"
#include "scan/plan/planner.h"

namespace seqpar {

/// A communicator with the C interface's additional state.
class CommEntry {
 public:
  explicit CommEntry(std::shared_ptr<Communicator> made);

  /// Counts the calling thread as inside; false if the communicator has been closed. enter() and close() each store
  /// before they load, so that at least one of them sees the other.
  bool enter() {
    callers_.fetch_add(1);
    if (open_.load()) return true;
    leave();
    return false;
  }
  void leave() {
    if (callers_.fetch_sub(1) == 1 && !open_.load()) callers_.notify_all();
  }
  /// Rejects new calls and waits until all calls have left.
  void close() {
    open_.store(false);
    for (int inside = callers_.load(); inside != 0; inside = callers_.load()) callers_.wait(inside);
  }

  std::shared_ptr<Communicator> comm;
  ScanPlanner scans;
  KnownCalls<ScanCall> scanCalls;
  KnownCalls<ShardsCall> shardsCalls;
  KnownCalls<HeadsCall> headsCalls;
  std::mutex mutex;
  std::string ending;  ///< of the first call that failed because the communicator is lost

 private:
  std::atomic<int> callers_{0};
  std::atomic<bool> open_{true};
};

HandleTable<CommEntry, seqparComm_t>& comms();
HandleTable<HostStream, seqparStream_t>& streams();
HandleTable<HostEvent, seqparEvent_t>& events();

/// A collective's `stream` argument on `comm`.
CallerStream callerStream(const char* call, void* stream, const Communicator& comm);

/// The host stream of a handle; InvalidArgument in the name of `call`, which expects `kind`, if it is not valid.
std::shared_ptr<HostStream> requireStream(const char* call, seqparStream_t stream, const char* kind);
/// The host stream of a collective's `stream` argument; null for NULL.
std::shared_ptr<HostStream> findStream(const char* call, void* stream);

}  // namespace seqpar
