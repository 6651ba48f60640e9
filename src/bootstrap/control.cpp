#include "bootstrap/control.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "base/error.h"
#include "bootstrap/agree.h"
#include "bootstrap/rendezvous_client.h"

namespace seqpar {
namespace {

class SoloControl final : public Control {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override { solo_->gather(mine, all); }
  void announce(const std::string&) noexcept override {}
  void leave() override {}
  void report(const CallChain&) noexcept override {}
  void countCall() noexcept override {}
  void nextCall() noexcept override {}
  void communicate() noexcept override {}
  void refuseCall(const std::string&) override {}
  std::string behind() override { return ""; }

 private:
  std::unique_ptr<Allgather> solo_ = makeSolo();
};

/// Data that rank 0 sends to the others: the rendezvous, or zeros if there is none.
using Invitation = seqparUniqueId;

/// The secret of the control connections. `salt` is what rank 0 sent: a salt if the ranks share a secret, otherwise the
/// secret itself, over a channel that the caller trusts.
Token controlToken(const Allgather& oob, const Token& salt) {
  const auto secret = oob.secret();
  return secret ? deriveToken(*secret, "control", salt) : salt;
}

std::unique_ptr<RootServer> openRoot(const Allgather& oob, const ControlOptions& options, Invitation& invitation) {
  Listener listener = listenOn(chosenInterface(options.interfaceName), 0);
  const wire::Rendezvous rendezvous{listener.addresses, listener.port, randomToken()};
  const auto name = concat("rank 0 (", localHostName(), ", pid ", getpid(), ")");
  auto server =
      std::make_unique<RootServer>(std::move(listener), RootOptions{controlToken(oob, rendezvous.token), name}, true);
  invitation = wire::encode(rendezvous);
  return server;
}

}  // namespace

std::unique_ptr<Control> Control::connect(Allgather& oob, const ControlOptions& options, Health& health) {
  if (oob.size() == 1) return std::make_unique<SoloControl>();
  std::unique_ptr<RootServer> server;
  Invitation invitation{};
  std::exception_ptr failure;
  try {
    if (oob.rank() == 0) server = openRoot(oob, options, invitation);
  } catch (...) {
    failure = std::current_exception();
  }
  std::vector<Invitation> all(static_cast<size_t>(oob.size()));
  oob.gatherValues(invitation, std::span(all));
  const auto& chars = all.front().internal;
  if (std::all_of(std::begin(chars), std::end(chars), [](char one) { return one == 0; })) agree(oob, failure);
  const wire::Rendezvous rendezvous = wire::decodeRendezvous(all.front());
  const JoinRequest request{controlToken(oob, rendezvous.token), oob.rank(), oob.size(), options.timeout};
  const ConnectTarget target{rendezvous.addresses, rendezvous.port, chosenInterface(options.interfaceName), false,
                             "rank 0 at "};
  // A rank that dies before it joins is known to the ranks' earlier connections only.
  const Health& watched = oob.health() != nullptr ? *oob.health() : health;
  const auto failClosed = [&] {
    if (server && !server->problem().empty()) {
      fail(seqparSystemError, "rank 0 could not serve control connections: ", server->problem());
    }
    fail(seqparRemoteError, "rank 0 closed its control connection at ",
         addressText(rendezvous.addresses.front(), rendezvous.port),
         " before all ranks had arrived: the process is gone");
  };
  // A rank that cannot connect tells the others, which would otherwise wait at the root for it.
  std::optional<ProvenConnection> proven;
  together(oob, [&] {
    proven = server ? proveTo(server->takeLocal(), request, watched) : proveAt(target, request, watched);
    if (!proven) failClosed();
  });
  auto joined = awaitAnswer(std::move(*proven), request, watched);
  if (!joined && !server) joined = joinRootAt(target, request, watched);  // dropped before the proof arrived
  if (!joined) failClosed();
  return std::make_unique<Client>(std::move(*joined), request, health, std::move(server));
}

}  // namespace seqpar
