// The control plane of a communicator: a star of TCP connections around rank 0 with the lifetime of the communicator.
// It gathers small values, sends heartbeats, and propagates failures.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/health.h"
#include "bootstrap/allgather.h"
#include "bootstrap/call_chain.h"

namespace seqpar {

struct ControlOptions {
  std::chrono::milliseconds timeout{300000};  ///< a rank that is silent for this long has failed; 0: never
  std::string interfaceName;                  ///< empty: the interface of the route to the peer
};

/// One thread at a time calls collectives; a separate thread serves heartbeats.
///
/// Failure detection: a connection that closes without a bye (a dead process) fails every rank at once, for any
/// timeout; a rank without heartbeats for `timeout` (stopped, unreachable) fails every rank. Both call
/// Health::fail(RemoteError, "rank R ..."), which names the rank.
class Control : public Allgather {
 public:
  /// Collective over `oob`: rank 0 listens and sends its address and a salt over `oob`; the others connect. The
  /// secret of the connections derives from oob.secret(); without one, the salt is the secret. `health` must outlive
  /// the object.
  static std::unique_ptr<Control> connect(Allgather& oob, const ControlOptions& options, Health& health);

  /// Tells all reachable ranks that this one has failed and why; their Health fails. Does not wait. Called from
  /// Health's hook, in any thread.
  virtual void announce(const std::string& why) noexcept = 0;

  /// Sends bye and waits, within the timeout, for the other ranks' byes, so that leaving is distinguished from dying.
  /// Does not wait after a failure. Called once, before destruction.
  virtual void leave() = 0;

  /// Reports, with the heartbeats, the calls of `chain`, which must outlive the object. If they differ from those of
  /// another rank, every rank's Health fails.
  virtual void report(const CallChain& chain) noexcept = 0;
  /// Reports, with the heartbeats, how many calls this rank has enqueued so far. Cheap; any thread.
  virtual void countCall() noexcept = 0;
  /// For CallSequence: this rank's next communication belongs to a new call of the program.
  virtual void nextCall() noexcept = 0;
  /// This rank communicates. Its Health fails if another rank refused that call.
  virtual void communicate() noexcept = 0;
  /// This rank refuses its call. Does not wait. Ranks that communicate in that call fail; their Health has `why`.
  virtual void refuseCall(const std::string& why) = 0;
  /// Text that names the ranks that have enqueued fewer calls than others for some time; "" if there are none. Ranks
  /// may legitimately differ: the text explains a timeout, and is not a failure.
  virtual std::string behind() = 0;
};

}  // namespace seqpar
