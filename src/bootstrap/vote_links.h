// The connections of a vote. A rank sends over connections that it opened and receives over those that it accepted, so
// each connection proves the identity of its sender (handshake.h).
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/handshake.h"
#include "bootstrap/socket.h"
#include "bootstrap/strangers.h"
#include "bootstrap/vote_wire.h"

namespace seqpar {

/// The address of a rank's listener; port 0: none.
struct VoteAddress {
  std::vector<IpAddress> addresses;
  uint16_t port = 0;
};

class VoteLinks {
 public:
  using Time = Deadline::Clock::time_point;
  struct Options {
    int self = 0;
    std::vector<VoteAddress> addresses;  ///< one a rank
    Token secret{};
    std::string interfaceName;
  };
  struct Received {
    int from = 0;
    uint32_t epoch = 0;
    VoteMessage message;
  };

  VoteLinks(Listener listener, Options options);

  /// Queues a message; the latest few are kept until there is a connection.
  void send(int to, uint32_t epoch, const VoteMessage& message);
  /// Waits until there is something to do, at most `most`, and does it.
  void serve(int wake, std::chrono::milliseconds most);
  std::vector<Received> takeReceived() { return std::exchange(received_, {}); }
  /// Ranks with a listener that no longer exists: their processes have ended, or have left.
  std::vector<int> takeRefused() { return std::exchange(refused_, {}); }
  /// Forgets a rank that takes no part any more.
  void drop(int rank) { outgoing_.erase(rank); }
  void close();

 private:
  /// A connection of another rank.
  struct Incoming {
    Strangers::Id id = 0;
    Descriptor socket;
    Time since;
    wire::Bytes greeting, output;
    std::optional<Session> session;
    std::optional<Opener> opener;  ///< once the rank has proved itself
    wire::FrameReader frames{wire::kMaxVote};
    int from = -1;
    bool ended = false;
  };
  /// This rank's connection to another.
  struct Outgoing {
    enum class Stage { Idle, Connecting, Greeting, Open };
    Stage stage = Stage::Idle;
    Descriptor socket;
    size_t address = 0;
    bool allRefused = true;  ///< in this round over the addresses
    Time since{}, retryAt{}, queuedAt{};
    std::chrono::milliseconds pause{0};
    wire::Bytes hello, challenge, output;
    std::optional<Sealer> sealer;
    std::deque<wire::Bytes> waiting;
  };

  void acceptAll(Time now);
  void readFrom(Incoming& link);
  void greet(Incoming& link, std::span<const std::byte> bytes);
  void deliver(Incoming& link, std::span<const std::byte> bytes);
  static void flush(Incoming& link);
  void advance(int rank, Outgoing& link, short events, Time now);
  void connect(int rank, Outgoing& link, Time now);
  void readChallenge(Outgoing& link, Time now);
  void awaitEnd(Outgoing& link, Time now);
  void flush(Outgoing& link, Time now);
  void nextAddress(int rank, Outgoing& link, int error, Time now);
  void retry(Outgoing& link, Time now);

  Listener listener_;
  Options options_;
  std::deque<Incoming> incoming_;
  Strangers strangers_;
  Strangers::Id nextId_ = 0;
  Time acceptAfter_{};  ///< when the process is out of descriptors
  std::map<int, Outgoing> outgoing_;
  std::vector<Received> received_;
  std::vector<int> refused_;
};

}  // namespace seqpar
