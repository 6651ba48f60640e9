// Connects ranks with the same id, at the server that the id names.
#include <unistd.h>

#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous_client.h"

namespace seqpar {

namespace {

constexpr std::string_view kSplit = "split";

/// `salt` is in the id; the server admits the ranks that know `token`.
seqparUniqueId startServer(const std::string& interfaceName, const std::string& name, const Token& salt,
                           const Token& token) {
  Listener listener = listenOn(chosenInterface(interfaceName), 0);
  const wire::Rendezvous rendezvous{listener.addresses, listener.port, salt};
  const auto where = concat(name, " (", localHostName(), ", pid ", getpid(), ")");
  RendezvousServers::instance().start(std::move(listener), RootOptions{token, where}, false);
  return wire::encode(rendezvous);
}

}  // namespace

seqparUniqueId makeUniqueId(const std::string& interfaceName, const std::string& name) {
  const Token token = randomToken();
  return startServer(interfaceName, name, token, token);
}

seqparUniqueId makeLockedId(const std::string& interfaceName, const Token& secret, const std::string& name) {
  const Token salt = randomToken();
  return startServer(interfaceName, name, salt, deriveToken(secret, kSplit, salt));
}

seqparUniqueId unlockId(const seqparUniqueId& id, const Token& secret) {
  wire::Rendezvous rendezvous = wire::decodeRendezvous(id);
  rendezvous.token = deriveToken(secret, kSplit, rendezvous.token);
  return wire::encode(rendezvous);
}

void endRendezvous(const seqparUniqueId& id) {
  RendezvousServers::instance().end(wire::decodeRendezvous(id).token);
}

std::unique_ptr<Allgather> joinRendezvous(const seqparUniqueId& id, int rank, int nranks, const ControlOptions& options,
                                          std::shared_ptr<Health> health) {
  checkRank(rank, nranks);
  const wire::Rendezvous rendezvous = wire::decodeRendezvous(id);
  if (nranks == 1) {
    RendezvousServers::instance().end(rendezvous.token);
    return makeSolo();
  }
  const JoinRequest request{rendezvous.token, rank, nranks, options.timeout};
  const auto join = [&](const Health& watched) {
    const ConnectTarget target{rendezvous.addresses, rendezvous.port, chosenInterface(options.interfaceName), false};
    auto joined = joinRootAt(target, request, watched);
    if (joined) return std::move(*joined);
    fail(seqparRemoteError, "id: the server at ", addressText(rendezvous.addresses.front(), rendezvous.port),
         " closed the connection without an answer: it is not the id's, or its process has ended");
  };
  return makeRendezvousClient(request, join, std::move(health));
}

}  // namespace seqpar
