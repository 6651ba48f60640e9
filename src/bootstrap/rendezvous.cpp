// Connects ranks with the same id, at the server that the id names.
#include <unistd.h>

#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous_client.h"

namespace seqpar {

seqparUniqueId makeUniqueId(const std::string& interfaceName) {
  Listener listener = listenOn(chosenInterface(interfaceName), 0);
  const wire::Rendezvous rendezvous{listener.addresses, listener.port, randomToken()};
  const auto name = concat("the process that created the id (", localHostName(), ", pid ", getpid(), ")");
  RendezvousServers::instance().start(std::move(listener), RootOptions{rendezvous.token, name}, false);
  return wire::encode(rendezvous);
}

std::unique_ptr<Allgather> joinRendezvous(const seqparUniqueId& id, int rank, int nranks,
                                          const ControlOptions& options) {
  checkRank(rank, nranks);
  const wire::Rendezvous rendezvous = wire::decodeRendezvous(id);
  if (nranks == 1) {
    RendezvousServers::instance().end(rendezvous.token);
    return makeSolo();
  }
  const JoinRequest request{rendezvous.token, rank, nranks, options.timeout};
  return makeRendezvousClient(request, [&](const Health& health) {
    const ConnectTarget target{rendezvous.addresses, rendezvous.port, chosenInterface(options.interfaceName), false};
    auto joined = joinRoot(connectTo(target, Deadline(options.timeout), health), request, health);
    if (joined) return std::move(*joined);
    fail(seqparRemoteError, "id: the server at ", addressText(rendezvous.addresses.front(), rendezvous.port),
         " closed the connection without an answer: it is not the id's, or its process has ended");
  });
}

}  // namespace seqpar
