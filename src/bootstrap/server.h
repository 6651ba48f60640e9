// A hub with its sockets and its thread.
#pragma once

#include <atomic>
#include <map>
#include <optional>

#include "bootstrap/descriptor.h"
#include "bootstrap/hub.h"
#include "bootstrap/socket.h"

namespace seqpar {

/// Serves until its hub is over or it is destroyed. It polls all connections and waits for none. Destruction sends what
/// is still to be sent, for a bounded while.
class HubServer {
 public:
  /// With `local`, a connection that need not be accepted is there for takeLocal().
  HubServer(Listener listener, HubOptions options, bool local);
  ~HubServer();
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  Descriptor takeLocal() { return std::move(localPeer_); }
  const Token& token() const { return token_; }
  /// True once it serves nobody any more.
  bool over() const { return over_; }

 private:
  void run() noexcept;
  void serve();
  void acceptAll(Hub::Time now);
  void readFrom(Hub::Id id, Hub::Time now);
  void tuneMembers();
  void writeAll(Hub::Time now);
  void writeTo(Hub::Id id, Hub::Time now);
  bool drained() const;

  Token token_;
  Listener listener_;
  Hub hub_;
  std::map<Hub::Id, Descriptor> sockets_;
  Descriptor localPeer_;
  Hub::Id localId_ = 0;
  bool tuned_ = false;
  Hub::Time acceptAfter_{};
  Wake wake_;
  std::atomic<bool> stopping_{false}, over_{false};
  std::optional<Worker> worker_;  // last: it uses all of the above
};

}  // namespace seqpar
