// The handles of the C interface.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "api/callers.h"
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

  std::shared_ptr<Communicator> comm;
  Callers callers;
  ScanPlanner scans;
  KnownCalls<ScanCall> scanCalls;
  KnownCalls<ShardsCall> shardsCalls;
  KnownCalls<HeadsCall> headsCalls;
  std::mutex mutex;
  std::string ending;  ///< of the first call that failed because the communicator is lost
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
