#include "attn/softmax/head_exchange.h"

#include <algorithm>
#include <numeric>

#include "attn/boundary.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention plan";

/// Rows as a tensor of heads of length 1.
Tensor asTensor(const Rows& rows) {
  return {rows.data, seqparFloat32, rows.batch, rows.tokens, rows.heads, 1, rows.batchStride, 1, rows.headStride};
}

int64_t sumOf(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

}  // namespace

HeadExchange::HeadExchange(const Problem& problem, Exec& exec, std::vector<int> members, Way way)
    : problem_(problem), exec_(exec), members_(std::move(members)), way_(way) {
  const auto& d = problem.desc;
  const auto place = std::find(members_.begin(), members_.end(), problem.rank()) - members_.begin();
  const auto rangeOf = [&](int64_t heads, int64_t member) {
    HeadRange range;
    require(seqparHeadsOfMember(heads, d.heads, static_cast<int>(members_.size()), static_cast<int>(member),
                                &range.first, &range.count),
            kCaller, nullptr);
    return range;
  };
  heads_ = rangeOf(d.heads, place);
  kvHeads_ = rangeOf(d.kvHeads, place);
  int64_t all = 0;
  for (size_t member = 0; member < members_.size(); ++member) {
    all += rangeOf(d.kvHeads, static_cast<int64_t>(member)).count;
    headsOfMembers_.push_back(rangeOf(d.heads, static_cast<int64_t>(member)).count);
  }
  copies_ = all > d.kvHeads;
  for (const int member : members_) {
    queries_.push_back(problem.queries.tokensOf(member));
    keys_.push_back(problem.keys.tokensOf(member));
  }
  for (size_t member = 0; member < members_.size(); ++member) {
    int64_t first = 0, count = 0;
    require(seqparHeadsOfMember(std::max<int64_t>(tokens(), 1), 0, static_cast<int>(members_.size()),
                                static_cast<int>(member), &first, &count),
            kCaller, nullptr);
    evenRows_ = evenRows_ && tokens() > 0 && queries_[member] == count;
  }
}

int64_t HeadExchange::tokens() const {
  return sumOf(queries_);
}

int64_t HeadExchange::kvTokens() const {
  return sumOf(keys_);
}

void HeadExchange::carve(Arena& arena) {
  const auto& d = problem_.desc;
  const auto longest = static_cast<size_t>(d.batch * std::max(d.headDim, d.valueDim)) * sizeof(float);
  const auto room = [&](int64_t queries, int64_t keys) {
    return arena.take(longest * static_cast<size_t>(std::max(queries * d.heads, keys * d.kvHeads)));
  };
  stage_ = room(problem_.tokens(), problem_.kvTokens());
  if (way_ == Way::kGather) whole_ = room(tokens(), kvTokens());
  numbers_ = arena.tensor(seqparFloat32, d.batch, tokens(), heads_.count, 1);
}

seqparHeadShards_t HeadExchange::shardsOf(const Tensor& sequence, const std::vector<int64_t>& lengths) const {
  seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
  shards.dataType = sequence.type;
  shards.batch = sequence.batch;
  shards.heads = sequence.heads;
  shards.queryHeads = problem_.desc.heads;
  shards.headDim = sequence.dim;
  shards.tokensOfMembers = lengths.data();
  shards.group = members_.data();
  shards.groupSize = static_cast<int>(members_.size());
  return shards;
}

/// The caller's tensor, or memory for a dense copy of it.
Tensor HeadExchange::dense(const Tensor& tensor, seqparDataType_t type) const {
  if (tensor.dense() && tensor.type == type) return tensor;
  return denseTensor(stage_, type, tensor.batch, tensor.tokens, tensor.heads, tensor.dim);
}

void HeadExchange::gather(const Tensor& sequence, const Tensor& head, const std::vector<int64_t>& lengths) {
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.dataType = sequence.type;
  shards.outer = sequence.batch;
  shards.inner = sequence.heads * sequence.dim;
  shards.tokensOfMembers = lengths.data();
  shards.group = members_.data();
  shards.groupSize = static_cast<int>(members_.size());
  const Tensor whole = denseTensor(whole_, sequence.type, sequence.batch, sumOf(lengths), sequence.heads, sequence.dim);
  require(seqparAllGather(sequence.data, whole.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
  const auto& range = sequence.heads == problem_.desc.heads ? heads_ : kvHeads_;
  if (range.count > 0) exec_.copy(head, whole.headsFrom(range.first, range.count));
}

void HeadExchange::toHeads(const Tensor& sequence, const Tensor& head, const std::vector<int64_t>& lengths) {
  const Tensor from = dense(sequence, sequence.type);
  if (from.data != sequence.data) exec_.copy(from, sequence);
  if (way_ == Way::kGather) {
    gather(from, head, lengths);
    return;
  }
  const auto shards = shardsOf(from, lengths);
  require(seqparSequenceToHeads(from.data, head.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
}

void HeadExchange::toSequence(const Tensor& head, const Tensor& sequence, const std::vector<int64_t>& lengths) {
  const Tensor to = dense(sequence, head.type);
  const auto shards = shardsOf(to, lengths);
  require(seqparHeadsToSequence(head.data, to.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
  if (to.data != sequence.data) exec_.copy(sequence, to);
}

/// Rows are stored by heads and then by tokens. With heads and tokens exchanged, a head array is a sequence array, and
/// the exchange moves runs of tokens instead of single values.
seqparHeadShards_t HeadExchange::shardsOfRows(const Rows& head) const {
  seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
  shards.batch = head.batch;
  shards.heads = tokens();
  shards.headDim = 1;
  shards.tokensOfMembers = headsOfMembers_.data();
  shards.group = members_.data();
  shards.groupSize = static_cast<int>(members_.size());
  return shards;
}

void HeadExchange::toHeads(const Rows& sequence, const Rows& head) {
  if (evenRows_) {
    const auto shards = shardsOfRows(head);
    require(seqparHeadsToSequence(sequence.data, head.data, &shards, problem_.comm, exec_.main()), kCaller,
            problem_.comm);
    return;
  }
  toHeads(asTensor(sequence), numbers_, queries_);
  exec_.copy(asTensor(head), numbers_);
}

void HeadExchange::toSequence(const Rows& head, const Rows& sequence) {
  const auto& d = problem_.desc;
  if (evenRows_) {
    const auto shards = shardsOfRows(head);
    void* const mine = sequence.data != nullptr ? sequence.data : stage_;
    require(seqparSequenceToHeads(head.data, mine, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
    return;
  }
  const Tensor mine = denseTensor(stage_, seqparFloat32, d.batch, problem_.tokens(), d.heads, 1);
  exec_.copy(numbers_, asTensor(head));
  toSequence(numbers_, mine, queries_);
  if (sequence.data != nullptr) exec_.copy(asTensor(sequence), mine);
}

}  // namespace seqpar::attn
