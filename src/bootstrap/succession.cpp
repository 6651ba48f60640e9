#include "bootstrap/succession.h"

#include <algorithm>
#include <utility>

namespace seqpar {

using std::chrono::milliseconds;
using Kind = VoteMessage::Kind;

milliseconds voteInterval(milliseconds timeout) {
  constexpr milliseconds kLeast{5}, kMost{50};
  return timeout.count() == 0 ? kMost : std::clamp(timeout / 8, kLeast, kMost);
}

Succession::Succession(size_t size, VoteOptions options) : options_(std::move(options)) {
  options_.members.assign(size, true);
  options_.departed.assign(size, false);
  vote_ = std::make_unique<Vote>(options_);
}

void Succession::arrive(milliseconds timeout, Time now) {
  vote_->setTimeout(timeout, voteInterval(timeout));
  vote_->arrive(now);
  startNextEpoch();
}

void Succession::resign() {
  vote_->resign();
  startNextEpoch();
}

void Succession::receive(int from, uint32_t epoch, const VoteMessage& message, Time now) {
  if (from < 0 || static_cast<size_t>(from) >= options_.members.size()) return;
  const bool final = message.kind == Kind::Decided || message.kind == Kind::Resigned || message.kind == Kind::NoQuorum;
  if (epoch < decisions_.size()) {
    VoteMessage decided;
    decided.kind = Kind::Decided;
    decided.choice = decisions_[epoch];
    decided.departed.assign(options_.members.size(), false);
    if (!final) outbox_.push_back({from, epoch, std::move(decided)});
    return;
  }
  if (excluded_) return;
  if (epoch > decisions_.size()) {
    // This rank missed a decision; the sender answers an old message with it.
    VoteMessage join;
    join.departed.assign(options_.members.size(), false);
    if (!final) outbox_.push_back({from, static_cast<uint32_t>(decisions_.size()), std::move(join)});
    return;
  }
  vote_->receive(from, message, now);
  startNextEpoch();
}

void Succession::confirmDeparted(int rank, Time now) {
  if (excluded_) return;
  vote_->confirmDeparted(rank, now);
  startNextEpoch();
}

void Succession::tick(Time now) {
  if (excluded_) return;
  vote_->tick(now);
  startNextEpoch();
}

std::vector<Succession::Sent> Succession::take() {
  return std::exchange(outbox_, {});
}

/// Takes the vote's messages and, once it has decided, starts the next epoch.
void Succession::startNextEpoch() {
  const auto current = epoch();
  for (auto& sent : vote_->take()) outbox_.push_back({sent.to, current, std::move(sent.message)});
  if (!vote_->decided() || excluded_) return;
  const Membership choice = *vote_->decided();
  decisions_.push_back(choice);
  excluded_ = !choice.members[static_cast<size_t>(options_.self)];
  if (excluded_) return;
  options_.members = choice.members;
  options_.departed = vote_->departed();
  ++options_.seed;
  vote_ = std::make_unique<Vote>(options_);
}

}  // namespace seqpar
