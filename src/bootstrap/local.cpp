// Allgather through memory, for ranks that are threads of one process.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/deadline.h"
#include "base/error.h"
#include "bootstrap/bootstrap.h"

namespace seqpar {
namespace {

/// The result of a gather, the same for all ranks.
struct Outcome {
  std::vector<std::byte> all;
  std::string mismatch;
};

/// Shared by the ranks. A failure is permanent.
class Group {
 public:
  Group(int nranks, std::chrono::milliseconds timeout)
      : timeout_(timeout), shards_(static_cast<size_t>(nranks)), arrived_(static_cast<size_t>(nranks)) {}

  size_t size() const { return shards_.size(); }

  std::shared_ptr<const Outcome> gather(size_t rank, std::span<const std::byte> mine) {
    const Deadline deadline(timeout_);
    std::unique_lock lock(mutex_);
    checkWhole();
    shards_[rank].assign(mine.begin(), mine.end());
    arrived_[rank] = true;
    if (std::find(arrived_.begin(), arrived_.end(), false) == arrived_.end()) {
      finish();
      return outcome_;
    }
    const auto turn = turn_;
    while (turn == turn_) {
      checkWhole();
      if (deadline.passed()) {
        failure_ = concat("gather: ", missing(), " did not take part within ", timeout_.count(), " ms");
        changed_.notify_all();
        checkWhole();
      }
      changed_.wait_for(lock, deadline.left(std::chrono::milliseconds(1000)));
    }
    return outcome_;
  }

  void leave(size_t rank) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = concat("gather: rank ", rank, " is gone");
    changed_.notify_all();
  }

 private:
  void checkWhole() const {
    if (!failure_.empty()) throw Error(seqparRemoteError, failure_);
  }

  std::string missing() const {
    std::string text;
    for (size_t rank = 0; rank < size(); ++rank) {
      if (!arrived_[rank]) text += concat(text.empty() ? "rank " : ", rank ", rank);
    }
    return text;
  }

  void finish() {
    auto outcome = std::make_shared<Outcome>();
    for (size_t rank = 0; rank < size(); ++rank) {
      const auto& shard = shards_[rank];
      outcome->all.insert(outcome->all.end(), shard.begin(), shard.end());
      if (shard.size() != shards_[0].size() && outcome->mismatch.empty()) {
        outcome->mismatch =
            concat("gather: rank ", rank, " gave ", shard.size(), " bytes, rank 0 gave ", shards_[0].size());
      }
    }
    outcome_ = std::move(outcome);
    arrived_.assign(size(), false);
    ++turn_;
    changed_.notify_all();
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::byte>> shards_;
  std::vector<bool> arrived_;
  std::shared_ptr<const Outcome> outcome_;
  unsigned long long turn_ = 0;
  std::string failure_;
};

class LocalAllgather final : public Allgather {
 public:
  LocalAllgather(std::shared_ptr<Group> group, size_t rank) : group_(std::move(group)), rank_(rank) {}
  ~LocalAllgather() override { group_->leave(rank_); }

  int rank() const override { return static_cast<int>(rank_); }
  int size() const override { return static_cast<int>(group_->size()); }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const auto outcome = group_->gather(rank_, mine);
    if (!outcome->mismatch.empty()) throw Error(seqparInvalidUsage, outcome->mismatch);
    if (outcome->all.size() != all.size()) {
      fail(seqparInternalError, "gather: room for ", all.size(), " bytes, expected ", outcome->all.size());
    }
    if (!all.empty()) std::memcpy(all.data(), outcome->all.data(), all.size());
  }

 private:
  std::shared_ptr<Group> group_;
  size_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Allgather>> makeLocalGroup(int nranks, std::chrono::milliseconds timeout) {
  if (nranks < 1) fail(seqparInvalidArgument, "nranks is ", nranks, ", expected at least 1");
  const auto group = std::make_shared<Group>(nranks, timeout);
  std::vector<std::unique_ptr<Allgather>> ranks;
  for (size_t rank = 0; rank < group->size(); ++rank) ranks.push_back(std::make_unique<LocalAllgather>(group, rank));
  return ranks;
}

}  // namespace seqpar
