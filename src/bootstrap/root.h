// The middle of the star, without its sockets: what it answers to the bytes that its connections bring, and when. The
// server (server.h) moves the bytes; tests and the fuzzer feed it directly.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/reminder.h"
#include "bootstrap/token.h"
#include "bootstrap/wire.h"

namespace seqpar {

/// How often a sign of life is sent, for a silence of `timeout` (0: never) to be noticed in time.
std::chrono::milliseconds heartbeatInterval(std::chrono::milliseconds timeout);

struct RootOptions {
  Token token{};
  std::string name;  ///< who the root is, in texts for people
};

/// Ranks first join (all must arrive within the timeout that the first one names), then gather, then leave. Whatever
/// goes wrong with one is told to all, once. A connection that has not presented the token can affect nothing.
class Root {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = uint64_t;

  explicit Root(RootOptions options) : options_(std::move(options)) {}

  /// A connection was accepted: it has seconds to present the token.
  Id open(Time now);
  /// The connection of this process itself, which takes its time: before it joins it may wait for others elsewhere.
  Id openOwn(Time now);
  void receive(Id id, std::span<const std::byte> bytes, Time now);
  /// A connection has ended, as `how` says, and is forgotten.
  void close(Id id, const std::string& how, Time now);
  /// Time has passed. Call after what has arrived was received, at least every interval().
  void tick(Time now);

  /// Bytes to be sent; the server removes what it has sent.
  wire::Bytes& output(Id id) { return connections_.at(id).output; }
  const wire::Bytes& output(Id id) const { return connections_.at(id).output; }
  /// The server closes it (and tells by close()) once its output is sent.
  bool finished(Id id) const { return connections_.at(id).finished; }
  /// New connections are of use.
  bool accepting() const { return state_ == State::Joining || (state_ == State::Failed && !ran_); }
  /// Nothing is left to be done.
  bool over(Time now) const;
  bool running() const { return state_ == State::Running; }
  std::chrono::milliseconds interval() const { return heartbeatInterval(timeout_); }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  enum class State { Joining, Running, Failed, Finished };

  struct Connection {
    Time until;  // strangers and the refused are cut off then
    Time heard, sent;
    wire::Bytes hello;
    wire::FrameReader frames{wire::kMaxPiece};
    wire::Bytes output;
    std::optional<size_t> rank;
    bool finished = false;
  };

  struct Seat {
    std::optional<Id> connection;  // while it is there
    bool joined = false, left = false;
    std::string name;
    uint64_t calls = 0;                // that it has enqueued, as far as it said
    std::optional<wire::Bytes> piece;  // of the gather under way
  };

  void greet(Connection& connection, Id id, Time now);
  void join(Connection& connection, Id id, const wire::Hello& hello, Time now);
  void refuse(Connection& connection, const std::string& why, Time now);
  void handle(Connection& connection, wire::Frame frame, Time now);
  void gather(Seat& seat, wire::Frame frame, Time now);
  void finishGather();
  void finishIfAllLeft(Time now);
  void failAll(const std::string& why, Time now);
  void watch(Time now);
  void remind(Time now);
  void compareCalls(Time now);

  RootOptions options_;
  State state_ = State::Joining;
  bool ran_ = false;
  std::chrono::milliseconds timeout_{0};
  std::vector<Seat> seats_;
  std::map<Id, Connection> connections_;
  Id nextId_ = 1;
  uint32_t sequence_ = 1;
  std::string failure_;
  std::optional<Time> lastTick_, firstJoin_, firstPiece_, firstBye_;
  std::optional<Reminder> reminder_;  ///< of the wait under way: for all to join, to gather or to leave
  uint64_t fewestCalls_ = 0;
  std::optional<Time> apart_;  ///< since when somebody has stood at fewestCalls_ while others have gone on
  bool behindTold_ = false;
  Time lingerUntil_{};
};

}  // namespace seqpar
