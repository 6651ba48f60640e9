// A root with its sockets and thread.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "bootstrap/descriptor.h"
#include "bootstrap/root.h"
#include "bootstrap/socket.h"

namespace seqpar {

/// Serves until its root is over or it is destroyed. Polls all connections and blocks on none. Destruction sends the
/// remaining output, for a bounded time.
class RootServer {
 public:
  /// With `local`, takeLocal() returns a connection that is already accepted.
  RootServer(Listener listener, RootOptions options, bool local);
  ~RootServer();
  RootServer(const RootServer&) = delete;
  RootServer& operator=(const RootServer&) = delete;

  Descriptor takeLocal() { return std::move(localPeer_); }
  const Token& token() const { return token_; }
  /// True once all connections have ended.
  bool over() const { return over_; }
  /// The error that ended the server; empty if there is none.
  std::string problem() const;

 private:
  /// A connection's socket and the records around its bytes.
  struct Link {
    Descriptor socket;
    std::optional<Sealer> sealer;
    std::optional<Opener> opener;
    wire::Bytes unsent;
  };

  void run() noexcept;
  void serve();
  void end(const char* why) noexcept;
  void acceptAll(Root::Time now);
  void pauseAccepting(int error, Root::Time now);
  void readFrom(Root::Id id, Root::Time now);
  void tuneMembers();
  void writeAll(Root::Time now);
  void writeTo(Root::Id id, Root::Time now);
  bool pending(Root::Id id, const Link& link) const;
  bool held(Root::Id id, Root::Time now) const;
  bool drained() const;

  Token token_;
  Listener listener_;
  Root root_;
  std::map<Root::Id, Link> sockets_;
  Descriptor localPeer_;
  Root::Id localId_ = 0;
  bool tuned_ = false;
  Root::Time acceptAfter_{};
  std::optional<Root::Time> shortSince_;  // since when no descriptor is left for a connection that waits
  Wake wake_;
  Descriptor spare_;  // closed after a shortage, so that the waiting connections get an answer one after the other
  std::optional<Root::Time> answerOwnAt_;  // this rank is told of the shortage after the others: its process may end
  std::atomic<bool> stopping_{false}, over_{false};
  mutable std::mutex mutex_;
  std::string problem_;
  std::optional<Worker> worker_;  // last: it uses all members above
};

}  // namespace seqpar
