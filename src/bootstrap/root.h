// The center of the star without its sockets: its answers to received bytes, and their timing. The server (server.h)
// moves the bytes; tests and the fuzzer feed it directly.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/reminder.h"
#include "bootstrap/handshake.h"
#include "bootstrap/strangers.h"
#include "bootstrap/token.h"
#include "bootstrap/wire.h"

namespace seqpar {

/// The heartbeat interval that reveals a silence of `timeout` (0: never) in time.
std::chrono::milliseconds heartbeatInterval(std::chrono::milliseconds timeout);

struct RootOptions {
  Token token{};
  std::string name;  ///< name of the root in messages
};

/// Ranks first join (all must arrive within the timeout that the first one sends), then gather, then leave. Any failure
/// of a rank is reported to all, once. A connection that does not prove that it knows the token has no effect. Few
/// bytes are kept of it, it has few seconds, and the number of such connections is bounded, in all and for each source.
class Root {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = uint64_t;

  explicit Root(RootOptions options) : options_(std::move(options)) {}

  /// Whether one more connection may be accepted: not while many recent ones have not proved themselves yet.
  bool mayOpen(Time now) const;
  /// A connection from `source` was accepted; it has a few seconds for its handshake. May finish older ones.
  Id open(Time now, uint64_t source = 0);
  /// The connection of this process itself, without that limit: before it joins it may wait for other ranks elsewhere.
  Id openOwn(Time now);
  /// Bytes that the handshake of this connection still expects; 0 for a rank. A server reads no more than these.
  size_t expected(Id id) const;
  /// The keys of the records around all further bytes in both directions. None during the handshake, for which the
  /// bytes of receive() and output() are sent as they are.
  const Session* session(Id id) const;
  void receive(Id id, std::span<const std::byte> bytes, Time now);
  /// A connection has ended, for the reason `how`, and is forgotten.
  void close(Id id, const std::string& how, Time now);
  /// Connections cannot be accepted, for the reason `why`: the ranks that have not joined yet cannot join.
  void refuseJoins(const std::string& why, Time now);
  /// Advances the time. Call after received bytes were passed to receive(), at least every interval().
  void tick(Time now);

  /// Bytes to send; the server removes the sent ones.
  wire::Bytes& output(Id id) { return connections_.at(id).output; }
  const wire::Bytes& output(Id id) const { return connections_.at(id).output; }
  /// The server closes the connection (and calls close()) once its output is sent.
  bool finished(Id id) const { return connections_.at(id).finished; }
  /// Its time is over: the server does not wait for its output to be sent.
  bool expired(Id id, Time now) const { return now >= connections_.at(id).until; }
  /// Whether new connections are useful.
  bool accepting() const { return state_ == State::Joining || (state_ == State::Failed && !ran_); }
  /// Whether all work is done.
  bool over(Time now) const;
  bool running() const { return state_ == State::Running; }
  std::chrono::milliseconds interval() const { return heartbeatInterval(timeout_); }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  /// For a refused connection to read the reason.
  static constexpr std::chrono::milliseconds kRefusalLimit{2000};

  enum class State { Joining, Running, Failed, Finished };

  struct Connection {
    Time until;  // limit of connections that are unknown or refused
    Time heard, sent;
    uint64_t source = 0;
    wire::Bytes greeting;              // Hello, then Proof
    std::optional<wire::Hello> hello;  // once challenged
    std::optional<Session> session;    // likewise
    bool proven = false;
    wire::FrameReader frames{wire::kMaxShard};
    wire::Bytes output;
    std::optional<size_t> rank;
    bool finished = false;
  };

  struct Seat {
    std::optional<Id> connection;  // while connected
    bool joined = false, left = false;
    std::string name;
    uint64_t calls = 0;                // enqueued calls, as last reported
    std::optional<CallReport> report;  // likewise
    std::optional<wire::Bytes> shard;  // of the current gather
  };

  void challenge(Connection& connection);
  void admit(Connection& connection, Id id, Time now);
  void forgetUnproven(Id id);
  void join(Connection& connection, Id id, const wire::Hello& hello, Time now);
  void refuse(Connection& connection, const std::string& why, Time now);
  void handle(Connection& connection, wire::Frame frame, Time now);
  void spread(const Connection& from, const wire::Frame& frame);
  void gather(Seat& seat, wire::Frame frame, Time now);
  void finishGather();
  void finishIfAllLeft(Time now);
  void failAll(const std::string& why, Time now);
  void watch(Time now);
  void remind(Time now);
  void compareCounts(Time now);
  void compareCalls(const Seat& seat, Time now);

  RootOptions options_;
  State state_ = State::Joining;
  bool ran_ = false;
  std::chrono::milliseconds timeout_{0};
  std::vector<Seat> seats_;
  std::map<Id, Connection> connections_;
  Strangers strangers_;
  Id nextId_ = 1;
  uint32_t sequence_ = 1;
  std::string failure_;
  std::optional<Time> lastTick_, firstJoin_, firstShard_, firstBye_;
  std::optional<Reminder> reminder_;  ///< of the current wait: for all to join, to gather or to leave
  uint64_t fewestCalls_ = 0;
  std::optional<Time> behindSince_;  ///< since when some rank has remained at fewestCalls_ while others advanced
  bool behindReported_ = false;
  Time lingerUntil_{};
};

}  // namespace seqpar
