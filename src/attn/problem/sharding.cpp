#include <algorithm>
#include <numeric>

#include "attn/boundary.h"
#include "attn/problem/needed.h"
#include "attn/problem/problem.h"

namespace seqpar::attn {

Sharding::Sharding(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {
  layout_.ranks = 0;
  layout_.tokens = tokens();
}

Sharding::Sharding(const char* call, const seqparLayout_t& layout) : layout_(layout), byLengths_(false) {
  lengths_.resize(static_cast<size_t>(std::max(1, layout.ranks)));
  for (size_t r = 0; r < lengths_.size(); ++r) {
    require(seqparLayoutLocalLength(&layout, static_cast<int>(r), &lengths_[r]), call, nullptr);
  }
  if (layout.sequences > 0) cuSeqlens_.assign(layout.cuSeqlens, layout.cuSeqlens + layout.sequences + 1);
  layout_.cuSeqlens = nullptr;
  if (layout.kind != seqparPieces) return;
  pieceOwners_.assign(layout.pieceOwners, layout.pieceOwners + layout.pieces);
  pieces_.assign(layout.pieceBounds, layout.pieceBounds + layout.pieces + 1);
  pieces_.insert(pieces_.end(), pieceOwners_.begin(), pieceOwners_.end());
}

Sharding::Sharding(const Sharding& of, std::span<const std::vector<int>> groups) {
  for (const auto& members : groups) {
    std::vector<std::vector<TokenRun>> shards;
    int64_t length = 0;
    for (const int member : members) {
      shards.push_back(of.runsOf(member));
      length += of.tokensOf(member);
    }
    lengths_.push_back(length);
    runs_.push_back(joinRuns(shards));
  }
  layout_.ranks = 0;
  layout_.tokens = tokens();
}

int64_t Sharding::tokens() const {
  return std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0});
}

int64_t Sharding::longest() const {
  return lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
}

seqparLayout_t Sharding::layout() const {
  auto layout = layout_;
  layout.pieceBounds = pieces_.empty() ? nullptr : pieces_.data();
  layout.pieceOwners = pieceOwners_.empty() ? nullptr : pieceOwners_.data();
  return layout;
}

seqparLayout_t Sharding::whole() const {
  auto layout = this->layout();
  layout.cuSeqlens = cuSeqlens_.empty() ? nullptr : cuSeqlens_.data();
  return layout;
}

std::vector<TokenRun> Sharding::runsOf(int rank) const {
  if (!runs_.empty()) return runs_[static_cast<size_t>(rank)];
  if (byLengths_) {
    const auto before = std::accumulate(lengths_.begin(), lengths_.begin() + rank, int64_t{0});
    return {{0, before, tokensOf(rank), 1}};
  }
  const auto layout = whole();
  int64_t count = 0;
  require(seqparLayoutRuns(&layout, rank, nullptr, 0, &count), "attention plan", nullptr);
  std::vector<seqparLayoutRun_t> given(static_cast<size_t>(count));
  require(seqparLayoutRuns(&layout, rank, given.data(), count, &count), "attention plan", nullptr);
  std::vector<TokenRun> runs;
  for (const auto& run : given) {
    if (run.length == 1 || run.count == 1) {  // one progression
      runs.push_back({run.local, run.global, run.length * run.count, run.count == 1 ? 1 : run.stride});
      continue;
    }
    for (int64_t i = 0; i < run.count; ++i) {
      runs.push_back({run.local + i * run.length, run.global + i * run.stride, run.length, 1});
    }
  }
  return runs;
}

std::vector<TokenRun> Sharding::allRuns() const {
  std::vector<std::vector<TokenRun>> shards;
  shards.reserve(lengths_.size());
  for (int rank = 0; rank < ranks(); ++rank) shards.push_back(runsOf(rank));
  return joinRuns(shards);
}

bool Sharding::operator==(const Sharding& other) const {
  const auto& a = layout_;
  const auto& b = other.layout_;
  return byLengths_ == other.byLengths_ && a.kind == b.kind && a.ranks == b.ranks && a.stripe == b.stripe &&
         a.slices == b.slices && cuSeqlens_ == other.cuSeqlens_ && pieces_ == other.pieces_ &&
         lengths_ == other.lengths_ && runs_ == other.runs_;
}

ScoreTable::ScoreTable(const Sharding& queries, const Sharding& keys, const Visibility& visibility)
    : queryShards_(queries),
      keyShards_(keys),
      cuSeqlens_(visibility.cuSeqlens.begin(), visibility.cuSeqlens.end()),
      visibility_(visibility),
      scores_(static_cast<size_t>(queries.ranks()) * static_cast<size_t>(keys.ranks()), -1) {
  visibility_.cuSeqlens = cuSeqlens_;
  queries_.reserve(queries.lengths().size());
  keys_.reserve(keys.lengths().size());
  for (int rank = 0; rank < queries.ranks(); ++rank) queries_.push_back(queries.runsOf(rank));
  for (int rank = 0; rank < keys.ranks(); ++rank) keys_.push_back(keys.runsOf(rank));
}

bool ScoreTable::isOf(const Sharding& queries, const Sharding& keys, const Visibility& visibility) const {
  return visibility_.left == visibility.left && visibility_.right == visibility.right &&
         visibility_.shift == visibility.shift && visibility_.slices == visibility.slices && queryShards_ == queries &&
         keyShards_ == keys &&
         std::equal(cuSeqlens_.begin(), cuSeqlens_.end(), visibility.cuSeqlens.begin(), visibility.cuSeqlens.end());
}

int64_t ScoreTable::scores(int queryRank, int keyRank) {
  const auto q = static_cast<size_t>(queryRank), k = static_cast<size_t>(keyRank);
  int64_t& scores = scores_[q * keys_.size() + k];
  if (scores < 0) scores = scoresOf(rectanglesOf(queries_[q], keys_[k], visibility_));
  return scores;
}

const std::vector<std::vector<TokenRange>>& ScoreTable::seenByOthers(bool ofQueries) {
  auto& seen = seen_[ofQueries ? 1 : 0];
  if (seen.empty())
    seen = ofQueries ? seenTokens(queries_, keys_, visibility_, true) : seenTokens(keys_, queries_, visibility_, false);
  return seen;
}

namespace {

thread_local constinit SharedScoreTables* sharing = nullptr;

}  // namespace

std::shared_ptr<ScoreTable> makeScoreTable(const Sharding& queries, const Sharding& keys,
                                           const Visibility& visibility) {
  if (sharing == nullptr) return std::make_shared<ScoreTable>(queries, keys, visibility);
  for (const auto& table : sharing->tables_) {
    if (table->isOf(queries, keys, visibility)) return table;
  }
  constexpr size_t kMost = 8;  // layouts of the algorithms of a choice, and of parts of a problem
  if (sharing->tables_.size() == kMost) sharing->tables_.erase(sharing->tables_.begin());
  return sharing->tables_.emplace_back(std::make_shared<ScoreTable>(queries, keys, visibility));
}

SharedScoreTables::SharedScoreTables() {
  if (sharing == nullptr) sharing = this;
}

SharedScoreTables::~SharedScoreTables() {
  if (sharing == this) sharing = nullptr;
}

const std::vector<std::vector<TokenRange>>& Problem::seenByOthers(bool ofQueries) const {
  return table->seenByOthers(ofQueries);
}

}  // namespace seqpar::attn
