// The ways in which the ranks of a communicator can meet. Each gives an Allgather, over which Control::connect() then
// makes the connections that stay.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/allgather.h"
#include "bootstrap/control.h"
#include "seqpar/seqpar.h"

namespace seqpar {

/// Starts a server in this process at which the ranks of one communicator meet, and names it. The server ends when it
/// has served them, or with the process. SystemError without a usable interface or port.
seqparUniqueId makeUniqueId(const std::string& interfaceName);

/// Collective over `nranks` callers with the same `id`; returns when all have arrived. InvalidArgument for an id that
/// is none and a rank out of range; RemoteError if a rank did not arrive in time or does not fit the others.
std::unique_ptr<Allgather> joinRendezvous(const seqparUniqueId& id, int rank, int nranks,
                                          const ControlOptions& options);

/// What the environment said, and the ranks it brought together.
struct EnvironmentJoin {
  int rank = 0;
  int nranks = 0;
  std::unique_ptr<Allgather> allgather;
};

/// joinRendezvous() as the environment says (see seqparCommInitEnv). InvalidUsage if a variable is missing or means
/// nothing.
EnvironmentJoin joinFromEnvironment(const ControlOptions& options);

/// The caller's own allgather. Its failure is a RemoteError.
std::unique_ptr<Allgather> wrapOob(const seqparOob_t& oob);

/// Ranks that are threads of this process: element r is rank r's. A wait longer than `timeout` (0: none), or a rank
/// that is gone, is a RemoteError on all.
std::vector<std::unique_ptr<Allgather>> makeLocalGroup(int nranks, std::chrono::milliseconds timeout);

}  // namespace seqpar
