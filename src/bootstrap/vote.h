// The agreement of the surviving ranks on the members of their next communicator, without sockets: a rank's answers to
// messages, evidence and time. Lineage (lineage.h) moves the messages; a model test moves them on virtual time.
//
// Single-decree Paxos (Lamport, "The Part-Time Parliament", 1998) with two kinds of quorum: a majority of the members,
// or all members that are not confirmed gone. Any live rank may lead; the lowest one that answers does. Two quorums
// share a rank that is alive, or no rank of the earlier one is alive, so all live ranks learn the same choice. A rank
// that is only silent is never counted as gone: without a majority it may be on the other side of a partition.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "seqpar/seqpar.h"

namespace seqpar {

/// One flag a rank, indexed by the rank in the first communicator.
using RankSet = std::vector<bool>;

/// The number of ranks in the set.
size_t countRanks(const RankSet& set);

/// What a vote decides.
struct Membership {
  RankSet members;           ///< of the next communicator
  seqparUniqueId meeting{};  ///< where they connect, locked with the lineage's secret
};

struct VoteMessage {
  enum class Kind : uint8_t {
    Join = 1,      ///< to the leader: this rank's caller waits
    Alive = 2,     ///< answer to Join
    Prepare = 3,   ///< from a leader: a ballot
    Promise = 4,   ///< answer: no lower ballot will be accepted, and the choice accepted so far
    Accept = 5,    ///< from a leader: a choice
    Accepted = 6,  ///< answer
    Reject = 7,    ///< answer: a higher ballot was promised
    Decided = 8,   ///< the result
    Resigned = 9,  ///< this rank takes no part: it counts as gone
    NoQuorum = 10  ///< from a leader: it cannot decide
  };
  Kind kind = Kind::Join;
  bool arrived = false;              ///< Promise: the rank's caller waits
  uint64_t ballot = 0;               ///< Reject: the promised ballot
  uint64_t accepted = 0;             ///< Promise: the ballot of `choice`; 0: none
  RankSet departed;                  ///< ranks that are confirmed gone
  std::optional<Membership> choice;  ///< Promise, Accept, Decided
};

struct VoteOptions {
  int self = 0;
  RankSet members;                        ///< of the failed communicator
  RankSet departed;                       ///< of these, already confirmed
  std::chrono::milliseconds timeout{0};   ///< without an answer for so long, a rank is silent; 0: never
  std::chrono::milliseconds interval{0};  ///< between repeated messages
  uint32_t seed = 1;                      ///< of pauses between ballots
  std::function<seqparUniqueId()> meet;   ///< opens a meeting place; called when this rank proposes a choice
};

class Vote {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Sent {
    int to = 0;
    VoteMessage message;
  };

  explicit Vote(VoteOptions options);

  /// For the following calls.
  void setTimeout(std::chrono::milliseconds timeout, std::chrono::milliseconds interval) {
    options_.timeout = timeout;
    options_.interval = interval;
  }
  /// The caller waits for the result.
  void arrive(Time now);
  /// The caller waits no longer.
  void leave();
  /// This rank takes no part any more.
  void resign();
  void receive(int from, const VoteMessage& message, Time now);
  /// Evidence that a process has ended or left.
  void confirmDeparted(int rank, Time now);
  /// Advances the time; call at least every interval.
  void tick(Time now);
  /// Removes and returns the messages to send.
  std::vector<Sent> take();

  const std::optional<Membership>& decided() const { return decided_; }
  bool resigned() const { return resigned_; }
  bool arrived() const { return arrived_; }
  /// Another rank has sent a message of this vote.
  bool contacted() const { return contacted_.has_value(); }
  /// Why the current call cannot succeed; "" while it can.
  const std::string& failure() const { return failure_; }
  const RankSet& departed() const { return departed_; }

 private:
  enum class Phase { Idle, Preparing, Accepting };

  Time advance(Time now);
  void step(Time now);
  void lead(Time now);
  void follow(int leader, Time now);
  void startBallot(Time now);
  void propose(Time now);
  void finishBallot(Time now);
  void yield(Time now);
  bool silent(size_t rank, Time now);
  bool isQuorum(const RankSet& set) const;
  std::optional<int> leader() const;
  void answer(int from, const VoteMessage& message, Time now);
  void send(int to, VoteMessage message);
  void sendTo(const RankSet& ranks, const VoteMessage& message);
  VoteMessage make(VoteMessage::Kind kind, uint64_t ballot = 0) const;
  VoteMessage makePromise() const;
  VoteMessage makeDecided() const;
  void decide(const Membership& choice);

  VoteOptions options_;
  size_t size_;
  std::vector<Sent> outbox_;
  std::optional<Membership> decided_;
  std::string failure_;
  bool arrived_ = false, resigned_ = false;
  RankSet departed_;
  std::vector<Time> heard_;
  std::optional<Time> contacted_, latest_;
  std::chrono::steady_clock::duration skipped_{0};  ///< while this process did not run

  // As an acceptor.
  uint64_t promised_ = 0, accepted_ = 0;
  std::optional<Membership> acceptedChoice_;

  // As a leader.
  Phase phase_ = Phase::Idle;
  uint64_t ballot_ = 0, highest_ = 0, bestBallot_ = 0;
  std::optional<Membership> best_, proposal_;
  std::optional<Membership> own_;           ///< with this rank's meeting place, which is opened once
  std::vector<std::optional<Time>> asked_;  ///< since when each rank owes an answer
  RankSet promises_, present_, voters_, accepts_;
  std::optional<Time> pauseUntil_;
  Time repeatAt_{};
  std::minstd_rand random_;

  // As a follower.
  RankSet passed_;  ///< leaders that did not lead in time
  std::optional<int> following_;
  Time followingSince_{};
};

}  // namespace seqpar
