// Ranks that were given an id meet at the server that it names.
#include <unistd.h>

#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/meeting.h"

namespace seqpar {

seqparUniqueId makeUniqueId(const std::string& interfaceName) {
  Listener listener = listenOn(chosenInterface(interfaceName), 0);
  const wire::Meeting meeting{listener.addresses, listener.port, randomToken()};
  const auto name = concat("the process that made the id (", localHostName(), ", pid ", getpid(), ")");
  MeetingServers::instance().start(std::move(listener), HubOptions{meeting.token, name}, false);
  return wire::encode(meeting);
}

std::unique_ptr<Allgather> joinRendezvous(const seqparUniqueId& id, int rank, int nranks,
                                          const ControlOptions& options) {
  checkRank(rank, nranks);
  const wire::Meeting meeting = wire::decodeMeeting(id);
  if (nranks == 1) {
    MeetingServers::instance().end(meeting.token);
    return makeSolo();
  }
  const JoinRequest request{meeting.token, rank, nranks, options.timeout};
  return makeMeetingMember(request, [&](const Health& health) {
    const ConnectTarget target{meeting.addresses, meeting.port, chosenInterface(options.interfaceName), false};
    auto joined = joinHub(connectTo(target, Deadline(options.timeout), health), request, health);
    if (joined) return std::move(*joined);
    fail(seqparRemoteError, "id: the server at ", addressText(meeting.addresses.front(), meeting.port),
         " closed the connection without an answer: it is not the id's, or its process has ended");
  });
}

}  // namespace seqpar
