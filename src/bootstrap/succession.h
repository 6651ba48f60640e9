// The votes of a communicator and of those that succeed it, one an epoch, without sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bootstrap/vote.h"

namespace seqpar {

/// A rank's view. Ranks are those of the first communicator in all epochs. Messages of an old epoch are answered with
/// its decision, so a process that was stopped meanwhile learns that it was excluded.
class Succession {
 public:
  using Time = Vote::Time;
  struct Sent {
    int to = 0;
    uint32_t epoch = 0;
    VoteMessage message;
  };

  /// `options` without `members`: all `size` ranks are members of epoch 0.
  Succession(size_t size, VoteOptions options);

  uint32_t epoch() const { return static_cast<uint32_t>(decisions_.size()); }
  /// The members of the current epoch.
  const RankSet& members() const { return options_.members; }
  /// The decision that created the current epoch; it exists after epoch 0.
  const Membership& choice() const { return decisions_.back(); }
  /// The other members decided without this rank.
  bool excluded() const { return excluded_; }
  bool resigned() const { return vote_->resigned(); }
  bool arrived() const { return vote_->arrived(); }
  /// Another rank votes in the current epoch.
  bool contacted() const { return vote_->contacted(); }
  const std::string& failure() const { return vote_->failure(); }
  const RankSet& departed() const { return vote_->departed(); }

  void arrive(std::chrono::milliseconds timeout, Time now);
  void leave() { vote_->leave(); }
  void resign();
  void receive(int from, uint32_t epoch, const VoteMessage& message, Time now);
  void confirmDeparted(int rank, Time now);
  void tick(Time now);
  std::vector<Sent> take();

 private:
  void startNextEpoch();

  VoteOptions options_;
  std::unique_ptr<Vote> vote_;
  std::vector<Membership> decisions_;
  std::vector<Sent> outbox_;
  bool excluded_ = false;
};

/// The interval of repeated messages of a vote with this timeout.
std::chrono::milliseconds voteInterval(std::chrono::milliseconds timeout);

}  // namespace seqpar
