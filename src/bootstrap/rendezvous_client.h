// The Allgather over a root at which ranks meet before they have a communicator, and the servers of this process.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "bootstrap/allgather.h"
#include "bootstrap/client.h"

namespace seqpar {

/// Throws InvalidArgument unless 0 <= rank < nranks and there are not too many.
void checkRank(int rank, int nranks);

/// Makes the client of a rendezvous with the Health that it is given, which it keeps.
std::unique_ptr<Allgather> makeRendezvousClient(const JoinRequest& request,
                                                const std::function<RootConnection(const Health&)>& join);

/// The allgather of a single rank.
std::unique_ptr<Allgather> makeSolo();

/// The servers that this process runs for others; they end with the process.
class RendezvousServers {
 public:
  static RendezvousServers& instance();

  /// Starts a server; with `local`, for takeLocal(), returns a connection to it. Frees those that are over.
  Descriptor start(Listener listener, RootOptions options, bool local);
  /// Ends the server with this token, if it is here.
  void end(const Token& token);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<RootServer>> servers_;
};

}  // namespace seqpar
