#include "bootstrap/root.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLingerLimit{60000};  // for late ranks to learn why they cannot join
constexpr milliseconds kGoodbyeLimit{5000};  // for ranks to close after all have left
constexpr milliseconds kHeartbeatMost{250}, kHeartbeatLeast{5};
constexpr milliseconds kBehindDelay{1000};  // time with different numbers of enqueued calls before all ranks are told
constexpr size_t kListed = 8;

/// "rank 3" or "ranks 1, 2 and 5 more".
template <typename Chosen>
std::string listRanks(size_t count, Chosen chosen) {
  std::string text;
  size_t found = 0;
  for (size_t rank = 0; rank < count; ++rank) {
    if (!chosen(rank)) continue;
    if (++found <= kListed) text += concat(found == 1 ? "" : ", ", rank);
  }
  if (found > kListed) text += concat(" and ", found - kListed, " more");
  return concat(found == 1 ? "rank " : "ranks ", text);
}

}  // namespace

milliseconds heartbeatInterval(milliseconds timeout) {
  return timeout.count() == 0 ? kHeartbeatMost : std::clamp(timeout / 4, kHeartbeatLeast, kHeartbeatMost);
}

void Root::receive(Id id, std::span<const std::byte> bytes, Time now) {
  Connection& connection = connections_.at(id);
  if (connection.finished) return;
  if (!connection.proven) {
    // Bytes after a Hello would be an answer to a Challenge that is not sent yet.
    if (bytes.size() > expected(id)) connection.finished = true;
    if (connection.finished) return forgetUnproven(id);
    connection.greeting.insert(connection.greeting.end(), bytes.begin(), bytes.end());
    if (expected(id) > 0) return;
    if (connection.hello) {
      admit(connection, id, now);
    } else {
      challenge(connection);
    }
    if (connection.finished || connection.proven) forgetUnproven(id);
    return;
  }
  connection.heard = now;
  if (!connection.rank) return;
  const std::string name = seats_[*connection.rank].name;
  try {
    connection.frames.append(bytes);
    while (!connection.finished) {
      auto frame = connection.frames.next();
      if (!frame) break;
      handle(connection, std::move(*frame), now);
    }
  } catch (const Error& error) {
    failAll(concat(name, " sent to ", options_.name, ": ", error.what()), now);
    connection.finished = true;
    connection.until = now + kRefusalLimit;
  }
}

void Root::handle(Connection& connection, wire::Frame frame, Time now) {
  Seat& seat = seats_[*connection.rank];
  if (state_ != State::Running) {
    if (state_ == State::Joining) fail(seqparRemoteError, "a message before all ranks had joined");
    return;
  }
  const bool sign = frame.kind == wire::Kind::Heartbeat || frame.kind == wire::Kind::Calls;
  if (seat.left && !sign && frame.kind != wire::Kind::News) {
    fail(seqparRemoteError, "a message after its bye");
  }
  switch (frame.kind) {
    case wire::Kind::Heartbeat:
      return;
    case wire::Kind::Calls: {
      const auto calls = wire::decodeCalls(frame.body);
      if (!calls) fail(seqparRemoteError, "a call count of ", frame.body.size(), " bytes, expected another size");
      seat.calls = calls->enqueued;
      seat.report = calls->report;
      return compareCalls(seat, now);
    }
    case wire::Kind::Gather:
      return gather(seat, std::move(frame), now);
    case wire::Kind::News:
      return failAll(concat(seat.name, " failed: ", wire::readable(frame.body)), now);
    case wire::Kind::Refused:
      return spread(connection, frame);
    case wire::Kind::Bye:
      if (firstShard_) return failAll(concat(seat.name, " left while others gather"), now);
      seat.left = true;
      if (!firstBye_) {
        firstBye_ = now;
        reminder_.emplace(now);
      }
      return finishIfAllLeft(now);
    default:
      fail(seqparRemoteError, "a message that only the root sends");
  }
}

/// Reports a refusal to the other ranks.
void Root::spread(const Connection& from, const wire::Frame& frame) {
  auto refusal = wire::decodeRefusal(frame.body);
  if (!refusal) fail(seqparRemoteError, "a refusal of another form");
  refusal->why = concat(seats_[*from.rank].name, " refused a call: ", refusal->why);
  const wire::Bytes body = wire::encode(*refusal);
  for (auto& [id, connection] : connections_) {
    if (connection.rank && connection.rank != from.rank) {
      wire::append(connection.output, wire::Kind::Refused, 0, body);
    }
  }
}

void Root::gather(Seat& seat, wire::Frame frame, Time now) {
  if (frame.sequence != sequence_ || seat.shard) {
    fail(seqparRemoteError, "gather ", frame.sequence, ", expected ", sequence_);
  }
  if (frame.body.size() > wire::kMaxResult / seats_.size()) {
    fail(seqparRemoteError, "gather of ", frame.body.size(), " bytes a rank, expected at most ",
         wire::kMaxResult / seats_.size());
  }
  if (firstBye_) {
    const auto left = std::find_if(seats_.begin(), seats_.end(), [](const Seat& one) { return one.left; });
    return failAll(concat(left->name, " left, and ", seat.name, " gathers"), now);
  }
  seat.shard = std::move(frame.body);
  if (!firstShard_) {
    firstShard_ = now;
    reminder_.emplace(now);
  }
  if (std::all_of(seats_.begin(), seats_.end(), [](const Seat& one) { return one.shard.has_value(); })) {
    finishGather();
  }
}

void Root::finishGather() {
  const size_t size = seats_[0].shard->size();
  const auto differs = [&](size_t rank) { return seats_[rank].shard->size() != size; };
  wire::Bytes message;
  size_t other = 0;
  while (other < seats_.size() && !differs(other)) ++other;
  if (other < seats_.size()) {
    wire::appendText(message, wire::Kind::Mismatch, sequence_,
                     concat("gather: ", listRanks(seats_.size(), differs), " gave another size than rank 0: rank ",
                            other, " gave ", seats_[other].shard->size(), " bytes, rank 0 gave ", size));
  } else {
    wire::Bytes all;
    all.reserve(size * seats_.size());
    for (const Seat& seat : seats_) all.insert(all.end(), seat.shard->begin(), seat.shard->end());
    wire::append(message, wire::Kind::Gathered, sequence_, all);
  }
  for (Seat& seat : seats_) {
    seat.shard.reset();
    if (!seat.connection) continue;
    auto& out = connections_.at(*seat.connection).output;
    out.insert(out.end(), message.begin(), message.end());
  }
  ++sequence_;
  firstShard_.reset();
  reminder_.reset();
}

void Root::finishIfAllLeft(Time now) {
  if (!std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.left; })) return;
  for (auto& [id, connection] : connections_) {
    if (connection.rank) wire::append(connection.output, wire::Kind::AllLeft);
  }
  state_ = State::Finished;
  lingerUntil_ = now + kGoodbyeLimit;
}

void Root::close(Id id, const std::string& how, Time now) {
  const auto node = connections_.extract(id);
  forgetUnproven(id);
  if (node.empty() || !node.mapped().rank) return;
  Seat& seat = seats_[*node.mapped().rank];
  seat.connection.reset();
  if (seat.left || state_ == State::Failed || state_ == State::Finished) return;
  failAll(concat(seat.name, " ", how, state_ == State::Joining ? " (not all ranks had joined yet)" : ""), now);
}

void Root::failAll(const std::string& why, Time now) {
  if (state_ == State::Failed || state_ == State::Finished) return;
  const bool joining = state_ == State::Joining;
  state_ = State::Failed;
  failure_ = why;
  lingerUntil_ = now + (timeout_.count() == 0 ? kLingerLimit : std::min(timeout_, kLingerLimit));
  for (auto& [id, connection] : connections_) {
    if (!connection.rank) continue;
    if (joining) {
      refuse(connection, why, now);
    } else {
      wire::appendText(connection.output, wire::Kind::News, 0, why);
    }
  }
}

void Root::tick(Time now) {
  // Time while this process was stopped or suspended does not count as silence.
  if (lastTick_ && now - *lastTick_ > 2 * interval() + kHeartbeatMost) {
    for (auto& [id, connection] : connections_) connection.heard += now - *lastTick_;
  }
  lastTick_ = now;
  for (auto& [id, connection] : connections_) {
    if (now >= connection.until) {
      connection.finished = true;
      connection.output.clear();
      forgetUnproven(id);
    }
    // Unsent output is an equally good heartbeat.
    if (connection.rank && ran_ && connection.output.empty() && now - connection.sent >= interval()) {
      wire::append(connection.output, wire::Kind::Heartbeat);
      connection.sent = now;
    }
  }
  if (reminder_ && reminder_->due(now)) remind(now);
  if (state_ == State::Running) compareCounts(now);
  if (timeout_.count() > 0) watch(now);
}

/// Reports ranks that are some calls behind for a while to all ranks, for the text of a timeout: a rank that waits for
/// a GPU does not know which rank that GPU waits for.
void Root::compareCounts(Time now) {
  const auto fewer = [](const Seat& a, const Seat& b) { return a.calls < b.calls; };
  const auto [least, most] = std::minmax_element(seats_.begin(), seats_.end(), fewer);
  const bool together = least->calls == most->calls;
  if (together || least->calls != fewestCalls_) behindSince_.reset();
  fewestCalls_ = least->calls;
  if (!together && !behindSince_) behindSince_ = now;
  const bool tell = behindSince_ && now - *behindSince_ >= kBehindDelay;
  if (tell == behindReported_) return;
  behindReported_ = tell;
  std::string text;
  if (tell) {
    text = concat(listRanks(seats_.size(), [&](size_t rank) { return seats_[rank].calls == fewestCalls_; }),
                  " enqueued ", fewestCalls_, " calls, others up to ", most->calls);
  }
  for (auto& [id, connection] : connections_) {
    if (connection.rank) wire::appendText(connection.output, wire::Kind::Behind, 0, text);
  }
}

/// Fails all ranks if a collective call of `seat` differs from the same call of another rank.
void Root::compareCalls(const Seat& seat, Time now) {
  if (!seat.report) return;
  for (const Seat& other : seats_) {
    const auto found = other.report ? differenceOf(*seat.report, *other.report) : std::nullopt;
    if (!found) continue;
    const bool swapped = &seat > &other;
    return failAll(concat("the ranks disagree about a call: ", (swapped ? other : seat).name, " and ",
                          (swapped ? seat : other).name, " issued different collective calls; the ",
                          found->first ? "first is" : "first differs at or before", " number ", found->call,
                          ". Expected the same calls in the same order, with arguments that SEQPAR_CHECK=1 compares"),
                   now);
  }
}

void Root::remind(Time now) {
  const auto lasted = concat(" after ", reminder_->lasted(now).count(), " s");
  if (state_ == State::Joining) {
    const auto absent = [&](size_t rank) { return !seats_[rank].joined; };
    return log(LogLevel::Warn, options_.name, ": ", listRanks(seats_.size(), absent), " did not arrive", lasted);
  }
  if (state_ != State::Running) return;
  const auto arrived = [&](size_t rank) { return firstShard_ ? seats_[rank].shard.has_value() : seats_[rank].left; };
  const auto text = concat(listRanks(seats_.size(), [&](size_t rank) { return !arrived(rank); }),
                           firstShard_ ? " did not take part" : " did not leave", lasted);
  for (size_t rank = 0; rank < seats_.size(); ++rank) {
    const auto& connection = seats_[rank].connection;
    if (arrived(rank) && connection)
      wire::appendText(connections_.at(*connection).output, wire::Kind::Missing, 0, text);
  }
}

void Root::watch(Time now) {
  if (state_ == State::Joining && firstJoin_ && now - *firstJoin_ >= timeout_) {
    return failAll(concat(listRanks(seats_.size(), [&](size_t rank) { return !seats_[rank].joined; }),
                          " did not arrive at ", options_.name, " within ", timeout_.count(), " ms"),
                   now);
  }
  if (state_ != State::Running) return;
  for (const auto& [id, connection] : connections_) {
    if (connection.rank && !seats_[*connection.rank].left && now - connection.heard >= timeout_) {
      return failAll(concat(seats_[*connection.rank].name, " has been silent for ", timeout_.count(),
                            " ms: it is stopped or cannot be reached"),
                     now);
    }
  }
  if (firstShard_ && now - *firstShard_ >= timeout_) {
    return failAll(concat("gather: ", listRanks(seats_.size(), [&](size_t rank) { return !seats_[rank].shard; }),
                          " did not take part within ", timeout_.count(), " ms"),
                   now);
  }
  if (firstBye_ && now - *firstBye_ >= timeout_) {
    failAll(concat(listRanks(seats_.size(), [&](size_t rank) { return !seats_[rank].left; }), " did not leave within ",
                   timeout_.count(), " ms of the first rank that did"),
            now);
  }
}

bool Root::over(Time now) const {
  if (state_ == State::Joining || state_ == State::Running) return false;
  return now >= lingerUntil_ || (ran_ && connections_.empty());
}

}  // namespace seqpar
