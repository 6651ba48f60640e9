// The control plane of a communicator: a star of TCP connections with rank 0 in the middle that stays up as long as the
// communicator. It gathers small values, carries heartbeats, and spreads the news of a failure.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/health.h"
#include "bootstrap/allgather.h"

namespace seqpar {

struct ControlOptions {
  std::chrono::milliseconds timeout{300000};  ///< silence of a rank for this long is its failure; 0: never
  std::string interfaceName;                  ///< empty: the interface that routes to the peer
};

/// Collective calls are made by one thread at a time; a thread of its own serves heartbeats.
///
/// Failure detection: a connection that closes without a bye (a dead process) fails every rank at once, whatever
/// the timeout; a rank whose heartbeat is silent for `timeout` (stopped, unreachable) fails every rank. Both go to
/// Health::fail(RemoteError, "rank R ..."), which names the rank.
class Control : public Allgather {
 public:
  /// Collective over `oob`: rank 0 listens, its address and a fresh random token travel over `oob`, the others connect.
  /// `health` must outlive the object.
  static std::unique_ptr<Control> connect(Allgather& oob, const ControlOptions& options, Health& health);

  /// Tells all ranks, as far as they can be reached, that this one has failed and why; their Health fails. Does not
  /// wait. Called from Health's hook, in any thread.
  virtual void announce(const std::string& why) noexcept = 0;

  /// Says bye and waits, within the timeout, for the other ranks' byes, so that nobody's leaving looks like a
  /// death. After a failure it waits for nobody. Called once, before destruction.
  virtual void leave() = 0;

  /// Tells the others, with the heartbeats, how many calls this rank has enqueued by now. Cheap, from any thread.
  virtual void countCall() noexcept = 0;
  /// Who has enqueued fewer calls than others for some time, in words; "" if nobody has. Ranks may differ and wait for
  /// nobody: this explains a timeout, and is none.
  virtual std::string behind() = 0;
};

}  // namespace seqpar
