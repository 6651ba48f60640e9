// Connects ranks that torchrun and similar launchers have started, at the address in their environment.
#include <unistd.h>

#include <strings.h>

#include <thread>

#include "base/env.h"
#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous_client.h"

namespace seqpar {
namespace {

constexpr std::chrono::milliseconds kRetryPause{100};
// A connection of another program may occupy the port for a moment.
constexpr std::chrono::milliseconds kPortWait{5000};

[[noreturn]] void failMissing(const char* name) {
  fail(seqparInvalidUsage, "environment variable ", name,
       " is not set: seqparCommInitEnv needs RANK, WORLD_SIZE, "
       "MASTER_ADDR and MASTER_PORT, as torchrun sets them");
}

int requiredInteger(const char* name, long least, long most) {
  const auto value = envInteger(name, least, most);
  if (!value) failMissing(name);
  return static_cast<int>(*value);
}

std::string requiredText(const char* name) {
  const auto value = envText(name);
  if (!value) failMissing(name);
  return *value;
}

uint16_t rendezvousPort() {
  const int master = requiredInteger("MASTER_PORT", 1, 65535);
  if (const auto port = envInteger("SEQPAR_BOOTSTRAP_PORT", 1, 65535)) return static_cast<uint16_t>(*port);
  const auto agent = envText("TORCHELASTIC_USE_AGENT_STORE");
  if (!agent || strcasecmp(agent->c_str(), "true") != 0) return static_cast<uint16_t>(master);
  if (master == 65535) {
    fail(seqparInvalidUsage, "environment variable MASTER_PORT=65535 with TORCHELASTIC_USE_AGENT_STORE=", *agent,
         ": there is no next port; set SEQPAR_BOOTSTRAP_PORT");
  }
  return static_cast<uint16_t>(master + 1);
}

Token rendezvousToken(const std::string& address, uint16_t port) {
  if (const auto secret = envText("SEQPAR_BOOTSTRAP_TOKEN")) return deriveToken(concat("secret ", *secret));
  return deriveToken(concat("public ", address, " ", port, " ", envText("TORCHELASTIC_RUN_ID").value_or("")));
}

RootConnection host(const JoinRequest& request, const std::string& interfaceName, uint16_t port, const Health& health) {
  // The previous rendezvous may have failed and still be reporting that.
  RendezvousServers::instance().end(request.token);
  const auto name = concat("rank 0 (", localHostName(), ", pid ", getpid(), ")");
  auto connection = RendezvousServers::instance().start(listenOn(interfaceName, port, kPortWait),
                                                        RootOptions{request.token, name}, true);
  auto joined = joinRoot(std::move(connection), request, health);
  if (!joined) fail(seqparInternalError, "the bootstrap's server ended early");
  return std::move(*joined);
}

RootConnection visit(const JoinRequest& request, const ConnectTarget& target, const Health& health) {
  const Deadline deadline(request.timeout);
  while (true) {
    // A server of another program, or one about to end, closes at once: rank 0 may listen there later.
    auto joined = joinRoot(connectTo(target, deadline, health), request, health);
    if (joined) return std::move(*joined);
    if (deadline.passed()) {
      fail(seqparRemoteError, "rank 0 did not arrive at ", addressText(target.addresses.front(), target.port),
           " within ", request.timeout.count(), " ms: the listener closes the connection (another program or token)");
    }
    std::this_thread::sleep_for(deadline.left(kRetryPause));
  }
}

}  // namespace

EnvironmentJoin joinFromEnvironment(const ControlOptions& options) {
  EnvironmentJoin join;
  join.nranks = requiredInteger("WORLD_SIZE", 1, wire::kMaxRanks);
  join.rank = requiredInteger("RANK", 0, join.nranks - 1);
  const std::string address = requiredText("MASTER_ADDR");
  const uint16_t port = rendezvousPort();
  if (join.nranks == 1) {
    join.allgather = makeSolo();
    return join;
  }
  const std::string interfaceName = chosenInterface(options.interfaceName);
  const JoinRequest request{rendezvousToken(address, port), join.rank, join.nranks, options.timeout};
  join.allgather = makeRendezvousClient(request, [&](const Health& health) {
    if (join.rank == 0) return host(request, interfaceName, port, health);
    return visit(request, ConnectTarget{resolveHost(address), port, interfaceName, true}, health);
  });
  return join;
}

}  // namespace seqpar
