#include "bootstrap/vote.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;
using Kind = VoteMessage::Kind;

constexpr milliseconds kLongestRound{250};  // between two calls of tick(), on a busy processor
constexpr int kLeaderTimeouts = 3;          // for a leader to reach a decision

std::string listOf(const RankSet& set) {
  std::string text;
  for (size_t rank = 0; rank < set.size(); ++rank) {
    if (set[rank]) text += concat(text.empty() ? "" : ", ", rank);
  }
  return text;
}

}  // namespace

size_t countRanks(const RankSet& set) {
  return static_cast<size_t>(std::count(set.begin(), set.end(), true));
}

Vote::Vote(VoteOptions options)
    : options_(std::move(options)),
      size_(options_.members.size()),
      departed_(options_.departed),
      heard_(size_),
      asked_(size_),
      promises_(size_),
      present_(size_),
      voters_(size_),
      accepts_(size_),
      random_(options_.seed),
      passed_(size_) {
  departed_.resize(size_);
  for (size_t rank = 0; rank < size_; ++rank) {
    if (!options_.members[rank]) departed_[rank] = true;
  }
}

Vote::Time Vote::advance(Time now) {
  // Time while this process was stopped does not count as silence.
  const auto most = std::clamp(options_.timeout / 4, 2 * options_.interval, 3 * options_.interval + kLongestRound);
  if (latest_ && now - *latest_ > most) skipped_ += now - *latest_ - most;
  latest_ = now;
  return now - skipped_;
}

void Vote::arrive(Time now) {
  now = advance(now);
  arrived_ = true;
  failure_.clear();
  phase_ = Phase::Idle;
  asked_.assign(size_, std::nullopt);
  pauseUntil_.reset();
  following_.reset();
  passed_.assign(size_, false);
  step(now);
}

void Vote::leave() {
  arrived_ = false;
  phase_ = Phase::Idle;
  contacted_.reset();
}

void Vote::resign() {
  if (resigned_ || decided_) return;
  resigned_ = true;
  phase_ = Phase::Idle;
  sendTo(options_.members, make(Kind::Resigned));
}

void Vote::confirmDeparted(int rank, Time now) {
  const auto index = static_cast<size_t>(rank);
  if (rank == options_.self || departed_[index]) return;
  departed_[index] = true;
  step(advance(now));
}

void Vote::tick(Time now) {
  step(advance(now));
}

std::vector<Vote::Sent> Vote::take() {
  return std::exchange(outbox_, {});
}

void Vote::receive(int from, const VoteMessage& message, Time now) {
  now = advance(now);
  const auto sender = static_cast<size_t>(from);
  if (from == options_.self || sender >= size_ || !options_.members[sender]) return;
  heard_[sender] = now;
  const bool final = message.kind == Kind::Decided || message.kind == Kind::Resigned || message.kind == Kind::NoQuorum;
  if (decided_) {
    if (!final) send(from, makeDecided());
    return;
  }
  if (message.kind == Kind::Decided) {
    if (message.choice) decide(*message.choice);
    return;
  }
  if (resigned_) {
    if (!final) send(from, make(Kind::Resigned));
    return;
  }
  // A message that was sent before the process ended; as an acceptor it is no longer counted.
  if (departed_[sender]) return;
  if (!contacted_ && !final) contacted_ = now;
  for (size_t rank = 0; rank < std::min(size_, message.departed.size()); ++rank) {
    if (message.departed[rank]) departed_[rank] = true;
  }
  // Quorums without this rank are possible now, so it must not vote.
  if (departed_[static_cast<size_t>(options_.self)]) {
    departed_[static_cast<size_t>(options_.self)] = false;
    failure_ = concat("rank ", from, " counts this rank as gone");
    return resign();
  }
  answer(from, message, now);
  step(now);
}

void Vote::answer(int from, const VoteMessage& message, Time now) {
  const auto sender = static_cast<size_t>(from);
  const bool mine = phase_ != Phase::Idle && message.ballot == ballot_;
  switch (message.kind) {
    case Kind::Join:
      send(from, make(Kind::Alive));
      if (phase_ == Phase::Preparing && !(promises_[sender] && present_[sender]))
        send(from, make(Kind::Prepare, ballot_));
      return;
    case Kind::Prepare:
    case Kind::Accept:
      highest_ = std::max(highest_, message.ballot);
      if (message.ballot < promised_) return send(from, make(Kind::Reject, promised_));
      if (message.ballot > ballot_ && phase_ != Phase::Idle) yield(now);
      promised_ = message.ballot;
      if (message.kind == Kind::Prepare) return send(from, makePromise());
      if (!message.choice) return;
      accepted_ = message.ballot;
      acceptedChoice_ = message.choice;
      return send(from, make(Kind::Accepted, message.ballot));
    case Kind::Promise:
      asked_[sender].reset();
      if (!mine || phase_ != Phase::Preparing) return;
      promises_[sender] = true;
      present_[sender] = message.arrived;
      if (message.choice && message.accepted > bestBallot_) {
        bestBallot_ = message.accepted;
        best_ = message.choice;
      }
      return;
    case Kind::Accepted:
      asked_[sender].reset();
      if (mine && phase_ == Phase::Accepting) accepts_[sender] = true;
      return;
    case Kind::Reject:
      asked_[sender].reset();
      highest_ = std::max(highest_, message.ballot);
      if (phase_ != Phase::Idle && message.ballot > ballot_) yield(now);
      return;
    case Kind::Resigned:
      departed_[sender] = true;
      return;
    case Kind::NoQuorum:
      if (arrived_ && following_ == from) failure_ = concat("no quorum: rank ", from, " cannot reach enough ranks");
      return;
    default:
      return;
  }
}

void Vote::step(Time now) {
  if (decided_ || resigned_) return;
  if (!arrived_) {
    const bool late = options_.timeout.count() > 0 && contacted_ && now - *contacted_ >= options_.timeout;
    if (late) resign();
    return;
  }
  if (!failure_.empty()) return;
  while (const auto chosen = leader()) {
    if (*chosen == options_.self) return lead(now);
    phase_ = Phase::Idle;
    follow(*chosen, now);
    if (leader() == chosen) return;
  }
}

/// The lowest rank that may still lead.
std::optional<int> Vote::leader() const {
  for (size_t rank = 0; rank < size_; ++rank) {
    const bool self = static_cast<int>(rank) == options_.self;
    if (self || (!departed_[rank] && !passed_[rank])) return static_cast<int>(rank);
  }
  return std::nullopt;
}

void Vote::follow(int leader, Time now) {
  const auto index = static_cast<size_t>(leader);
  if (following_ != leader) {
    following_ = leader;
    followingSince_ = now;
    repeatAt_ = now;
  }
  if (options_.timeout.count() > 0) {
    const bool mute = now - std::max(heard_[index], followingSince_) >= options_.timeout;
    // Counted from its first ballot: a leader that hears no other rank starts ballots forever.
    if (mute || now - followingSince_ >= kLeaderTimeouts * options_.timeout) {
      passed_[index] = true;
      return;
    }
  }
  if (now < repeatAt_) return;
  repeatAt_ = now + options_.interval;
  send(leader, make(Kind::Join));
}

/// Marks a rank as one that owes this leader an answer. Whether it has owed one for too long: a rank that hears no
/// other rank still sends, so its messages alone do not count.
bool Vote::silent(size_t rank, Time now) {
  if (!asked_[rank]) asked_[rank] = now;
  return options_.timeout.count() > 0 && asked_[rank] && now - *asked_[rank] >= options_.timeout;
}

bool Vote::isQuorum(const RankSet& set) const {
  bool complete = true;
  for (size_t rank = 0; rank < size_; ++rank) complete = complete && (departed_[rank] || set[rank]);
  return complete || 2 * countRanks(set) > countRanks(options_.members);
}

void Vote::lead(Time now) {
  if (phase_ == Phase::Idle) {
    if (pauseUntil_ && now < *pauseUntil_) return;
    startBallot(now);
  }
  if (phase_ == Phase::Preparing) {
    RankSet pending(size_);
    for (size_t rank = 0; rank < size_; ++rank) {
      const bool owes = !departed_[rank] && !(promises_[rank] && present_[rank]);
      pending[rank] = owes && !silent(rank, now);
    }
    if (countRanks(pending) == 0) {
      propose(now);
    } else if (now >= repeatAt_) {
      repeatAt_ = now + options_.interval;
      sendTo(pending, make(Kind::Prepare, ballot_));
    }
  }
  if (phase_ == Phase::Accepting) finishBallot(now);
}

void Vote::startBallot(Time now) {
  phase_ = Phase::Preparing;
  highest_ = std::max({highest_, promised_, ballot_});
  ballot_ = (highest_ / size_ + 1) * size_ + static_cast<uint64_t>(options_.self);
  highest_ = promised_ = ballot_;
  promises_.assign(size_, false);
  present_.assign(size_, false);
  promises_[static_cast<size_t>(options_.self)] = present_[static_cast<size_t>(options_.self)] = true;
  bestBallot_ = accepted_;
  best_ = acceptedChoice_;
  repeatAt_ = now;
}

/// All ranks have answered or are gone or silent.
void Vote::propose(Time now) {
  RankSet mute(size_);
  for (size_t rank = 0; rank < size_; ++rank) {
    voters_[rank] = promises_[rank] && present_[rank] && !departed_[rank];
    mute[rank] = !voters_[rank] && !departed_[rank];
  }
  if (!isQuorum(voters_)) {
    phase_ = Phase::Idle;
    failure_ = concat("no quorum: ", countRanks(voters_), " of ", countRanks(options_.members),
                      " ranks answer, silent: ", listOf(mute));
    return sendTo(voters_, make(Kind::NoQuorum));
  }
  try {
    if (!best_ && !own_) own_ = Membership{{}, options_.meet()};
  } catch (const std::exception& error) {
    failure_ = error.what();
    return resign();
  }
  if (best_) {
    proposal_ = best_;
  } else {
    proposal_ = own_;
    proposal_->members = voters_;
  }
  phase_ = Phase::Accepting;
  accepts_.assign(size_, false);
  accepts_[static_cast<size_t>(options_.self)] = true;
  accepted_ = ballot_;
  acceptedChoice_ = proposal_;
  repeatAt_ = now;
}

void Vote::finishBallot(Time now) {
  RankSet pending(size_);
  for (size_t rank = 0; rank < size_; ++rank) {
    pending[rank] = voters_[rank] && !accepts_[rank] && !departed_[rank];
    if (pending[rank] && silent(rank, now)) {
      phase_ = Phase::Idle;
      return;
    }
  }
  if (countRanks(pending) > 0) {
    if (now < repeatAt_) return;
    repeatAt_ = now + options_.interval;
    VoteMessage message = make(Kind::Accept, ballot_);
    message.choice = proposal_;
    return sendTo(pending, message);
  }
  // A rank that accepted and ended counts: only acceptors that are alive matter to later ballots.
  if (!isQuorum(accepts_)) {
    phase_ = Phase::Idle;
    return;
  }
  decide(Membership(*proposal_));
  sendTo(options_.members, makeDecided());
}

/// Leaves the floor to another leader for a while.
void Vote::yield(Time now) {
  phase_ = Phase::Idle;
  const auto most = static_cast<unsigned>(std::max<int64_t>(8 * options_.interval.count(), 2));
  pauseUntil_ = now + milliseconds(1 + random_() % most);
}

void Vote::decide(const Membership& choice) {
  decided_ = choice;
  phase_ = Phase::Idle;
}

void Vote::send(int to, VoteMessage message) {
  outbox_.push_back({to, std::move(message)});
}

void Vote::sendTo(const RankSet& ranks, const VoteMessage& message) {
  for (size_t rank = 0; rank < size_; ++rank) {
    const auto to = static_cast<int>(rank);
    if (ranks[rank] && !departed_[rank] && to != options_.self) send(to, message);
  }
}

VoteMessage Vote::make(Kind kind, uint64_t ballot) const {
  VoteMessage message;
  message.kind = kind;
  message.ballot = ballot;
  message.arrived = arrived_;
  message.departed = departed_;
  return message;
}

VoteMessage Vote::makePromise() const {
  VoteMessage message = make(Kind::Promise, promised_);
  message.accepted = accepted_;
  message.choice = acceptedChoice_;
  return message;
}

VoteMessage Vote::makeDecided() const {
  VoteMessage message = make(Kind::Decided);
  message.choice = decided_;
  return message;
}

}  // namespace seqpar
