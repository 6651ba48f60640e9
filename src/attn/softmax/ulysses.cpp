// ULYSSES: DeepSpeed Ulysses (arXiv 2309.14509), section 3: an all-to-all gives every rank all tokens of some of the
// heads; a second one returns the outputs. Key heads that several ranks need are copied to each, and their gradients
// are added on return. With `reserve` the exchanged inputs are kept, and the backward pass exchanges gradients only.
// MEGATRON_SP: Megatron-LM's sequence parallelism (arXiv 2205.05198, section 4.2.2) replaces the first all-to-all by an
// all-gather of the tokens of all heads.
#include <numeric>

#include "attn/softmax/base.h"
#include "attn/softmax/cost.h"
#include "attn/softmax/head_exchange.h"
#include "attn/softmax/local.h"

namespace seqpar::attn {
namespace {

std::vector<int> allRanks(const Problem& problem) {
  std::vector<int> ranks(static_cast<size_t>(problem.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class UlyssesOperator final : public SoftmaxOperator {
 public:
  UlyssesOperator(const Problem& problem, Exec& exec, HeadExchange::Way way)
      : UlyssesOperator(problem, exec, HeadExchange(problem, exec, allRanks(problem), way)) {}

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    const int64_t all = problem_.queries.tokens(), allKeys = problem_.keys.tokens();
    block_->carve(arena);
    rows_->carve(arena);
    exchange_.carve(arena);
    if (!problem_.reserves()) carveExchanged(arena);
    Arena& sums = accumulatorArena(arena);
    const auto takePartial = [&] {
      partial_ = {sums.tensor(seqparFloat32, d.batch, all, own_.count, d.valueDim),
                  sums.rows(d.batch, own_.count, all)};
    };
    const auto takeSums = [&] {
      if (!problem_.training()) return;
      sums_ = {sums.tensor(seqparFloat32, d.batch, all, own_.count, d.headDim),
               sums.tensor(seqparFloat32, d.batch, allKeys, ownKv_.count, d.headDim),
               sums.tensor(seqparFloat32, d.batch, allKeys, ownKv_.count, d.valueDim)};
    };
    sums.alternatives(takePartial, takeSums);
    if (!problem_.training()) return;
    delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
    headDelta_ = arena.rows(d.batch, own_.count, all);
    dOut_ = arena.tensor(problem_.type(), d.batch, all, own_.count, d.valueDim);
    // If each head has one rank, its gradients are complete, and no partial results are sent.
    const auto type = exchange_.copiesKvHeads() ? problem_.wireType() : problem_.type();
    sentQ_ = arena.tensor(problem_.type(), d.batch, all, own_.count, d.headDim);
    sentK_ = arena.tensor(type, d.batch, allKeys, ownKv_.count, d.headDim);
    sentV_ = arena.tensor(type, d.batch, allKeys, ownKv_.count, d.valueDim);
  }

  void carveReserve(Arena& arena) override { carveExchanged(arena); }

  void open() override {
    block_->prepare();
    rows_->prepare();
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    loadInputs(blockInputs(problem_, args));
    if (own_.count > 0) {
      const auto attention = block_->accumulate(partial_, out_, lse_);
      attention->add({q_, k_, v_}, rectangles_);
      const float* const all = sinks(args.sinks);
      attention->finish(all == nullptr ? nullptr : all + own_.first, out_, lse_);
    }
    exchange_.toSequence(out_, outTensor(problem_, args.out), exchange_.queries());
    // Always, because the caller of another rank may need them.
    exchange_.toSequence(lse_, lseRows(problem_, args.lse));
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    const bool reserved = problem_.reserves();
    if (!reserved || problem_.desc.sinks != 0) makeDelta(*rows_, args, delta_);
    if (!reserved) {
      loadInputs(blockInputs(problem_, args));
      exchange_.toHeads(lseRows(problem_, args.lse), lse_);
    }
    exchange_.toHeads(outTensor(problem_, args.dOut), dOut_, exchange_.queries());
    // All ranks exchange the same tensors, although the blocks' needs depend on their ranks' heads.
    const bool withOut = reserved || rows_->needsOut();
    if (!withOut) exchange_.toHeads(delta_, headDelta_);
    if (withOut && !reserved) exchange_.toHeads(outTensor(problem_, args.out), out_, exchange_.queries());
    if (withOut && own_.count > 0 && !block_->needsOut()) block_->delta(out_, dOut_, headDelta_);
    if (own_.count > 0) {
      const auto dq = block_->accumulate(GradientOf::Queries, sums_.dq, sentQ_);
      const auto dk = block_->accumulate(GradientOf::Keys, sums_.dk, sentK_);
      const auto dv = block_->accumulate(GradientOf::Values, sums_.dv, sentV_);
      block_->backward({q_, k_, v_, dOut_, lse_, headDelta_, out_}, rectangles_, GradientAccumulators{*dq, *dk, *dv});
      dq->finish(sentQ_);
      dk->finish(sentK_);
      dv->finish(sentV_);
    }
    exchange_.toSequence(sentQ_, queryTensor(problem_, args.dq), exchange_.queries());
    exchange_.toSequence(sentK_, keyTensor(problem_, args.dk), exchange_.keys());
    exchange_.toSequence(sentV_, valueTensor(problem_, args.dv), exchange_.keys());
  }

 private:
  UlyssesOperator(const Problem& problem, Exec& exec, HeadExchange exchange)
      : SoftmaxOperator(problem, exec, exchange.heads().first, exchange.heads().count, exchange.kvHeads().first,
                        exchange.kvHeads().count),
        rows_(blockOfAllHeads(problem, exec)),
        exchange_(std::move(exchange)),
        own_(exchange_.heads()),
        ownKv_(exchange_.kvHeads()),
        rectangles_(rectanglesOf(problem.queries.allRuns(), problem.keys.allRuns(), problem.visibility())) {
    block_->expect(rectangles_, problem.queries.tokens(), problem.keys.tokens(),
                   {.accumulated = true, .once = true, .sinks = problem.desc.sinks != 0});
  }

  /// The exchanged tensors that `reserve` keeps from forward to backward.
  void carveExchanged(Arena& arena) {
    const auto& d = problem_.desc;
    const int64_t all = problem_.queries.tokens(), allKeys = problem_.keys.tokens();
    q_ = arena.tensor(problem_.type(), d.batch, all, own_.count, d.headDim);
    k_ = arena.tensor(problem_.type(), d.batch, allKeys, ownKv_.count, d.headDim);
    v_ = arena.tensor(problem_.type(), d.batch, allKeys, ownKv_.count, d.valueDim);
    out_ = arena.tensor(problem_.type(), d.batch, all, own_.count, d.valueDim);
    lse_ = arena.rows(d.batch, own_.count, all);
  }

  void loadInputs(const BlockInputs& in) {
    exchange_.toHeads(in.q, q_, exchange_.queries());
    exchange_.toHeads(in.k, k_, exchange_.keys());
    exchange_.toHeads(in.v, v_, exchange_.keys());
  }

  std::unique_ptr<Block> rows_;  ///< all heads, for this rank's rows
  HeadExchange exchange_;
  HeadExchange::HeadRange own_, ownKv_;
  std::vector<Rectangle> rectangles_;
  Tensor q_, k_, v_, out_, dOut_;  ///< of all tokens and this rank's heads
  Tensor sentQ_, sentK_, sentV_;   ///< sent gradients, added if several ranks have the head
  Partial partial_;
  Rows lse_, delta_, headDelta_;
  BlockGradients sums_;
};

Estimate estimateUlysses(const Problem& problem) {
  const CostModel model(problem);
  const int ranks = problem.ranks();
  const auto& d = problem.desc;
  const double leaves = static_cast<double>(ranks - 1) / ranks;
  const auto queries = static_cast<double>(problem.queries.longest()),
             keys = static_cast<double>(problem.keys.longest());
  // With fewer key heads than ranks, heads are copied.
  const double copies = std::max(1.0, static_cast<double>(ranks) / static_cast<double>(d.kvHeads));
  const double q = leaves * model.qBytes(queries), out = leaves * model.outBytes(queries);
  const double rows = leaves * model.rowBytes(queries);
  const int64_t headsOfBusiest = (d.heads + ranks - 1) / ranks;
  // The busiest rank receives more bytes of queries than it sends.
  const double uneven = static_cast<double>(headsOfBusiest * ranks) / static_cast<double>(d.heads);
  const bool copied = d.kvHeads % ranks != 0;  // else each head's gradients are complete on its rank
  const double kv = leaves * copies * model.kvBytes(keys);
  const double sums = copied ? leaves * copies * model.kvSumBytes(keys) : kv;
  double scores = 0;
  for (int rank = 0; rank < ranks; ++rank) scores += model.scoresOfRank(rank);
  const double mine = scores * static_cast<double>(headsOfBusiest) / static_cast<double>(d.heads);
  const double again = problem.reserves() ? 0 : 1;  // number of input exchanges in the backward pass
  const std::vector<std::vector<TokenRun>> allQueries{problem.queries.allRuns()}, allKeys{problem.keys.allRuns()};
  const auto shape = model.ofHeads(model.shapeOf(joinRuns(allQueries), joinRuns(allKeys)), 1.0 / ranks);
  const auto send = [&](double sent) { return model.groupUs(sent, ranks, 1); };
  const auto sendRows = [&](double sent) { return send(uneven * sent); };
  return {model.blockUs(mine, false, shape) + sendRows(q) + send(kv) + sendRows(out),
          model.blockUs(mine, true, shape) + again * (sendRows(q) + send(kv) + sendRows(rows)) + sendRows(q) +
              sendRows(out) + send(sums),
          2 * q + kv + 2 * out + sums + again * (q + kv + rows)};
}

Estimate estimateMegatronSp(const Problem& problem) {
  const CostModel model(problem);
  const auto others = static_cast<double>(problem.ranks() - 1);
  const auto queries = static_cast<double>(problem.queries.longest()),
             keys = static_cast<double>(problem.keys.longest());
  // The gather replaces the all-to-all of the inputs; the return is the same.
  const auto ulysses = estimateUlysses(problem);
  const double share = 1 - 1 / static_cast<double>(problem.ranks());
  const double copies = std::max(1.0, static_cast<double>(problem.ranks()) / static_cast<double>(problem.desc.kvHeads));
  const double q = others * model.qBytes(queries) - share * model.qBytes(queries);
  const double kv = others * model.kvBytes(keys) - share * copies * model.kvBytes(keys);
  const double again = problem.reserves() ? 0 : 1;
  const double dOut = (others - share) * (model.outBytes(queries) + again * model.rowBytes(queries));
  return {ulysses.forwardUs + model.groupUs(std::max(0.0, q + kv), problem.ranks(), 1),
          ulysses.backwardUs + model.groupUs(std::max(0.0, again * (q + kv) + dOut), problem.ranks(), 1),
          ulysses.bytes + (1 + again) * (q + kv) + dOut};
}

std::unique_ptr<Operator> makeUlysses(const Problem& problem, Exec& exec) {
  if (problem.ranks() == 1) return makeLocal(problem, exec);
  return std::make_unique<UlyssesOperator>(problem, exec, HeadExchange::Way::kAllToAll);
}

std::unique_ptr<Operator> makeMegatronSp(const Problem& problem, Exec& exec) {
  if (problem.ranks() == 1) return makeLocal(problem, exec);
  return std::make_unique<UlyssesOperator>(problem, exec, HeadExchange::Way::kGather);
}

const RegisteredAlgorithm kUlysses({.id = seqparAttnUlysses,
                                    .name = "ulysses",
                                    .paper = "DeepSpeed Ulysses, arXiv 2309.14509, section 3",
                                    .ownLayout = contiguousLayout,
                                    .estimate = estimateUlysses,
                                    .make = makeUlysses});
const RegisteredAlgorithm kMegatronSp({.id = seqparAttnMegatronSp,
                                       .name = "megatron_sp",
                                       .paper = "Megatron-LM, arXiv 2205.05198, section 4.2.2",
                                       .ownLayout = contiguousLayout,
                                       .estimate = estimateMegatronSp,
                                       .make = makeMegatronSp});

}  // namespace
}  // namespace seqpar::attn
