// The Allgather over a root for ranks that have no communicator yet, and the servers of this process.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "bootstrap/allgather.h"
#include "bootstrap/client.h"

namespace seqpar {

/// Throws InvalidArgument unless 0 <= rank < nranks and nranks is within the limit.
void checkRank(int rank, int nranks);

/// Creates the client of a rendezvous; it keeps the Health that is passed to `join`, which is `health` if there is one.
std::unique_ptr<Allgather> makeRendezvousClient(const JoinRequest& request,
                                                const std::function<RootConnection(const Health&)>& join,
                                                std::shared_ptr<Health> health = nullptr);

/// The allgather of a single rank.
std::unique_ptr<Allgather> makeSolo();

/// The servers that this process runs for other ranks; they end with the process.
class RendezvousServers {
 public:
  static RendezvousServers& instance();

  /// Starts a server; with `local`, for takeLocal(), returns a connection to it. Frees finished servers.
  Descriptor start(Listener listener, RootOptions options, bool local);
  /// Ends the server with this token, if it runs in this process.
  void end(const Token& token);
  /// Sends the remaining output of all servers.
  void endAll();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<RootServer>> servers_;
};

}  // namespace seqpar
