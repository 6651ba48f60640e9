// Ways to connect the ranks of a communicator. Each provides an Allgather, over which Control::connect() sets up the
// permanent connections.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/allgather.h"
#include "bootstrap/control.h"
#include "seqpar/seqpar.h"

namespace seqpar {

/// The name of an id's server in errors, if no other is given.
constexpr const char* kIdCreator = "the process that created the id";

/// Starts a server in this process for the rendezvous of one communicator, and returns its id. The server ends when it
/// has served all ranks, or with the process. Throws SystemError without a usable interface or port.
seqparUniqueId makeUniqueId(const std::string& interfaceName, const std::string& name = kIdCreator);

/// Likewise for ranks that know `secret`: the id contains a salt, and only unlockId() makes it usable.
seqparUniqueId makeLockedId(const std::string& interfaceName, const Token& secret,
                            const std::string& name = kIdCreator);
/// Throws InvalidArgument for a malformed id.
seqparUniqueId unlockId(const seqparUniqueId& id, const Token& secret);

/// Ends the server of an unlocked id of this process, if it still runs: ranks that wait there return a RemoteError.
void endRendezvous(const seqparUniqueId& id);

/// Collective over `nranks` callers with the same `id`; returns when all have arrived. Throws InvalidArgument for a
/// malformed id or a rank out of range; RemoteError if a rank did not arrive in time or does not match the others.
/// `health`, if there is one, also fails the wait.
std::unique_ptr<Allgather> joinRendezvous(const seqparUniqueId& id, int rank, int nranks, const ControlOptions& options,
                                          std::shared_ptr<Health> health = nullptr);

/// The values of the environment, and the allgather of the connected ranks.
struct EnvironmentJoin {
  int rank = 0;
  int nranks = 0;
  std::unique_ptr<Allgather> allgather;
};

/// joinRendezvous() with parameters from the environment (see seqparCommInitEnv). Throws InvalidUsage if a variable is
/// missing or malformed.
EnvironmentJoin joinFromEnvironment(const ControlOptions& options);

/// The caller's own allgather. Its failure is a RemoteError.
std::unique_ptr<Allgather> wrapOob(const seqparOob_t& oob);

/// Ranks that are threads of this process: element r belongs to rank r. A wait longer than `timeout` (0: none), or a
/// destroyed rank, is a RemoteError on all ranks.
std::vector<std::unique_ptr<Allgather>> makeLocalGroup(int nranks, std::chrono::milliseconds timeout);

}  // namespace seqpar
