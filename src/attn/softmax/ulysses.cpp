// ULYSSES: DeepSpeed Ulysses (arXiv 2309.14509), section 3: an all-to-all brings every rank all tokens of some of the
// heads, which it attends to by itself; another brings the outputs back. Key heads that several ranks need are copied
// to each, and their gradients are added on the way back.
#include <algorithm>

#include "attn/boundary.h"
#include "attn/softmax/algorithms.h"
#include "attn/softmax/base.h"
#include "seqpar/exchange.h"

namespace seqpar::attn {
namespace {

constexpr const char* kWho = "attention plan";

struct HeadRange {
  int64_t first = 0, count = 0;
};

HeadRange headsOfRank(const Problem& problem, int64_t heads) {
  HeadRange range;
  require(seqparHeadsOfMember(heads, problem.desc.heads, problem.ranks(), problem.rank(), &range.first, &range.count),
          kWho, nullptr);
  return range;
}

/// Rows as a tensor of heads of length 1.
Tensor asTensor(const Rows& rows) {
  return {rows.data, seqparFloat32, rows.batch, rows.tokens, rows.heads, 1, rows.batchStride, 1, rows.headStride};
}

class UlyssesOperator final : public SoftmaxOperator {
 public:
  UlyssesOperator(const Problem& problem, Exec& exec)
      : UlyssesOperator(problem, exec, headsOfRank(problem, problem.desc.heads),
                        headsOfRank(problem, problem.desc.kvHeads)) {}

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    const int64_t all = problem_.queries.tokens(), allKeys = problem_.keys.tokens();
    block_->carve(arena);
    rows_->carve(arena);
    const int64_t most = std::max(problem_.tokens() * d.heads, problem_.kvTokens() * d.kvHeads);
    stage_ = arena.take(static_cast<size_t>(d.batch * most * std::max(d.headDim, d.valueDim)) * sizeof(float));
    q_ = arena.tensor(problem_.type(), d.batch, all, own_.count, d.headDim);
    k_ = arena.tensor(problem_.type(), d.batch, allKeys, ownKv_.count, d.headDim);
    v_ = arena.tensor(problem_.type(), d.batch, allKeys, ownKv_.count, d.valueDim);
    out_ = arena.tensor(problem_.type(), d.batch, all, own_.count, d.valueDim);
    partial_ = {arena.tensor(seqparFloat32, d.batch, all, own_.count, d.valueDim),
                arena.rows(d.batch, own_.count, all)};
    lse_ = arena.rows(d.batch, own_.count, all);
    numbers_ = arena.tensor(seqparFloat32, d.batch, all, own_.count, 1);
    if (!problem_.training()) return;
    delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
    headDelta_ = arena.rows(d.batch, own_.count, all);
    dOut_ = arena.tensor(problem_.type(), d.batch, all, own_.count, d.valueDim);
    sums_ = {arena.tensor(seqparFloat32, d.batch, all, own_.count, d.headDim),
             arena.tensor(seqparFloat32, d.batch, allKeys, ownKv_.count, d.headDim),
             arena.tensor(seqparFloat32, d.batch, allKeys, ownKv_.count, d.valueDim)};
    if (problem_.wireType() == seqparFloat32) return;
    sentK_ = arena.tensor(problem_.wireType(), d.batch, allKeys, ownKv_.count, d.headDim);
    sentV_ = arena.tensor(problem_.wireType(), d.batch, allKeys, ownKv_.count, d.valueDim);
  }

  void open() override {
    block_->prepare();
    rows_->prepare();
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    loadInputs(inputs(args));
    if (own_.count > 0) {
      block_->clear(partial_);
      block_->forward({q_, k_, v_}, rectangles_, partial_);
      const float* const all = sinks(args.sinks);
      block_->finish(partial_, all == nullptr ? nullptr : all + own_.first, out_, lse_);
    }
    toSequence(out_, outTensor(problem_, args.out), problem_.queries);
    // Always, since the caller of another rank may want them.
    const auto& d = problem_.desc;
    const Tensor mine = denseTensor(stage_, seqparFloat32, d.batch, problem_.tokens(), d.heads, 1);
    exec_.copy(numbers_, asTensor(lse_));
    toSequence(numbers_, mine, problem_.queries);
    if (args.lse != nullptr) exec_.copy(asTensor(lseRows(problem_, args.lse)), mine);
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    makeDelta(*rows_, args, delta_);
    loadInputs(inputs(args));
    toHeads(outTensor(problem_, args.dOut), dOut_, problem_.queries);
    loadRows(lseRows(problem_, args.lse), lse_);
    if (block_->needsOut()) {
      toHeads(outTensor(problem_, args.out), out_, problem_.queries);
    } else {
      loadRows(delta_, headDelta_);
    }
    for (const auto& sum : {sums_.dq, sums_.dk, sums_.dv}) exec_.zero(sum);
    if (own_.count > 0) block_->backward({q_, k_, v_, dOut_, lse_, headDelta_, out_}, rectangles_, sums_);
    exec_.copy(q_, sums_.dq);
    toSequence(q_, queryTensor(problem_, args.dq), problem_.queries);
    sendSum(sums_.dk, sentK_, keyTensor(problem_, args.dk));
    sendSum(sums_.dv, sentV_, valueTensor(problem_, args.dv));
  }

 private:
  UlyssesOperator(const Problem& problem, Exec& exec, HeadRange own, HeadRange ownKv)
      : SoftmaxOperator(problem, exec, own.first, own.count, ownKv.first, ownKv.count),
        rows_(blockOfAllHeads(problem, exec)),
        own_(own),
        ownKv_(ownKv),
        rectangles_(rectanglesOf(problem.queries.allRuns(), problem.keys.allRuns(), problem.visibility())) {
    block_->expect(rectangles_, problem.queries.tokens(), problem.keys.tokens());
  }

  void loadInputs(const BlockInputs& in) {
    toHeads(in.q, q_, problem_.queries);
    toHeads(in.k, k_, problem_.keys);
    toHeads(in.v, v_, problem_.keys);
  }

  void loadRows(const Rows& from, const Rows& to) {
    toHeads(asTensor(from), numbers_, problem_.queries);
    exec_.copy(asTensor(to), numbers_);
  }

  seqparHeadShards_t shardsOf(const Tensor& sequence, const Sharding& sharding) const {
    seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
    shards.dataType = sequence.type;
    shards.batch = sequence.batch;
    shards.heads = sequence.heads;
    shards.queryHeads = problem_.desc.heads;
    shards.headDim = sequence.dim;
    shards.tokensOfMembers = sharding.lengths().data();
    return shards;
  }

  /// What the caller gave, or a dense copy of it.
  Tensor dense(const Tensor& tensor, seqparDataType_t type) const {
    if (tensor.dense() && tensor.type == type) return tensor;
    return denseTensor(stage_, type, tensor.batch, tensor.tokens, tensor.heads, tensor.dim);
  }

  void toHeads(const Tensor& sequence, const Tensor& head, const Sharding& sharding) {
    const Tensor from = dense(sequence, sequence.type);
    if (from.data != sequence.data) exec_.copy(from, sequence);
    const auto shards = shardsOf(from, sharding);
    require(seqparSequenceToHeads(from.data, head.data, &shards, problem_.comm, exec_.main()), kWho, problem_.comm);
  }

  void toSequence(const Tensor& head, const Tensor& sequence, const Sharding& sharding) {
    const Tensor to = dense(sequence, head.type);
    const auto shards = shardsOf(to, sharding);
    require(seqparHeadsToSequence(head.data, to.data, &shards, problem_.comm, exec_.main()), kWho, problem_.comm);
    if (to.data != sequence.data) exec_.copy(sequence, to);
  }

  /// Gradients of keys or values, added where several ranks have the head.
  void sendSum(const Tensor& sum, const Tensor& sent, const Tensor& to) {
    if (sent.data != nullptr) exec_.copy(sent, sum);
    toSequence(problem_.wireType() == seqparFloat32 ? sum : sent, to, problem_.keys);
  }

  std::unique_ptr<Block> rows_;  ///< of all heads, for this rank's rows
  HeadRange own_, ownKv_;
  std::vector<Rectangle> rectangles_;
  void* stage_ = nullptr;                    ///< what is not dense in the caller's memory, on its way
  Tensor q_, k_, v_, out_, dOut_, numbers_;  ///< of all tokens and this rank's heads
  Tensor sentK_, sentV_;
  Partial partial_;
  Rows lse_, delta_, headDelta_;
  BlockGradients sums_;
};

}  // namespace

std::unique_ptr<Operator> makeUlysses(const Problem& problem, Exec& exec) {
  if (problem.ranks() == 1) return makeLocal(problem, exec);
  return std::make_unique<UlyssesOperator>(problem, exec);
}

}  // namespace seqpar::attn
