// ATTENTION2D: Attention2D (arXiv 2503.15758), the variant without overlap: ranks are a x b; queries are gathered in
// groups of a ranks, keys and values in groups of b, each rank attends its queries to its keys, and outputs with their
// lse are reduced and scattered in the queries' groups. Backward: the same with gradients.
#include <algorithm>

#include "attn/boundary.h"
#include "attn/softmax/base.h"
#include "attn/softmax/local.h"
#include "attn/softmax/mesh_cost.h"
#include "seqpar/exchange.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention plan";

/// Ranks that gather each other's shards.
struct Team {
  std::vector<int> ranks;
  std::vector<int64_t> lengths;
  std::vector<TokenRun> runs;  ///< of all ranks, in rank order
  int64_t tokens = 0;
};

Team teamOf(const Sharding& sharding, std::vector<int> ranks) {
  Team team;
  std::vector<std::vector<TokenRun>> runs;
  for (const int rank : ranks) {
    team.lengths.push_back(sharding.tokensOf(rank));
    team.tokens += sharding.tokensOf(rank);
    runs.push_back(sharding.runsOf(rank));
  }
  team.runs = joinRuns(runs);
  team.ranks = std::move(ranks);
  return team;
}

/// Consecutive ranks.
Team queryTeam(const Problem& problem) {
  const int size = ranksOfQueryGroup(problem), first = problem.rank() / size * size;
  std::vector<int> ranks;
  for (int rank = first; rank < first + size; ++rank) ranks.push_back(rank);
  return teamOf(problem.queries, ranks);
}

/// Ranks with the same index in their query teams.
Team keyTeam(const Problem& problem) {
  const int size = ranksOfQueryGroup(problem);
  std::vector<int> ranks;
  for (int rank = problem.rank() % size; rank < problem.ranks(); rank += size) ranks.push_back(rank);
  return teamOf(problem.keys, ranks);
}

class Attention2dOperator final : public SoftmaxOperator {
 public:
  Attention2dOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec),
        queries_(queryTeam(problem)),
        keys_(keyTeam(problem)),
        rectangles_(rectanglesOf(queries_.runs, keys_.runs, problem.visibility())) {
    block_->expect(rectangles_, queries_.tokens, keys_.tokens);
  }

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    const auto type = problem_.type();
    const int64_t rows = queries_.tokens, columns = keys_.tokens;
    const auto wire = problem_.wireType();
    const bool rounds = wire != seqparFloat32;
    block_->carve(arena);
    stage_ = arena.take(
        static_cast<size_t>(d.batch * std::max(problem_.tokens() * d.heads, problem_.kvTokens() * d.kvHeads) *
                            std::max(d.headDim, d.valueDim)) *
        sizeof(float));
    q_ = arena.tensor(type, d.batch, rows, d.heads, d.headDim);
    k_ = arena.tensor(type, d.batch, columns, d.kvHeads, d.headDim);
    v_ = arena.tensor(type, d.batch, columns, d.kvHeads, d.valueDim);
    partial_ = takePartial(arena, rows);
    sentOut_ = rounds ? arena.tensor(wire, d.batch, rows, d.heads, d.valueDim) : partial_.out;
    own_ = takePartial(arena, problem_.tokens());
    if (!problem_.training()) return;
    dOut_ = arena.tensor(type, d.batch, rows, d.heads, d.valueDim);
    out_ = arena.tensor(type, d.batch, block_->needsOut() ? rows : 0, d.heads, d.valueDim);
    delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
    allDelta_ = arena.rows(d.batch, d.heads, rows);
    sums_ = {arena.tensor(seqparFloat32, d.batch, rows, d.heads, d.headDim),
             arena.tensor(seqparFloat32, d.batch, columns, d.kvHeads, d.headDim),
             arena.tensor(seqparFloat32, d.batch, columns, d.kvHeads, d.valueDim)};
    sent_ = sums_;
    if (rounds) {
      sent_ = {arena.tensor(wire, d.batch, rows, d.heads, d.headDim),
               arena.tensor(wire, d.batch, columns, d.kvHeads, d.headDim),
               arena.tensor(wire, d.batch, columns, d.kvHeads, d.valueDim)};
    }
  }

  void open() override { block_->prepare(); }

  void forward(const seqparAttnForwardArgs_t& args) override {
    loadInputs(blockInputs(problem_, args));
    clear(exec_, partial_);
    block_->forward({q_, k_, v_}, rectangles_, partial_);
    const auto& d = problem_.desc;
    if (sentOut_.data != partial_.out.data) exec_.copy(sentOut_, partial_.out);
    const Tensor arrives = sentOut_.type == seqparFloat32
                               ? own_.out
                               : denseTensor(stage_, sentOut_.type, d.batch, problem_.tokens(), d.heads, d.valueDim);
    const auto shards = shardsOf(queries_, sentOut_.type, d.batch, d.heads * d.valueDim);
    require(seqparReduceScatterLse(sentOut_.data, partial_.lse.data, arrives.data, own_.lse.data, d.heads, &shards,
                                   problem_.comm, exec_.main()),
            kCaller, problem_.comm);
    if (arrives.data != own_.out.data) exec_.copy(own_.out, arrives);
    block_->finish(own_, sinks(args.sinks), outTensor(problem_, args.out), lseRows(problem_, args.lse));
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    makeDelta(*block_, args, delta_);
    loadInputs(blockInputs(problem_, args));
    gather(queries_, outTensor(problem_, args.dOut), dOut_);
    gather(queries_, lseRows(problem_, args.lse), partial_.lse);
    if (block_->needsOut()) {
      gather(queries_, outTensor(problem_, args.out), out_);
    } else {
      gather(queries_, delta_, allDelta_);
    }
    for (const auto& sum : {sums_.dq, sums_.dk, sums_.dv}) exec_.zero(sum);
    block_->backward({q_, k_, v_, dOut_, partial_.lse, allDelta_, out_}, rectangles_, sums_);
    scatter(queries_, sums_.dq, sent_.dq, queryTensor(problem_, args.dq));
    scatter(keys_, sums_.dk, sent_.dk, keyTensor(problem_, args.dk));
    scatter(keys_, sums_.dv, sent_.dv, valueTensor(problem_, args.dv));
  }

 private:
  static seqparShards_t shardsOf(const Team& team, seqparDataType_t type, int64_t outer, int64_t inner) {
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.dataType = type;
    shards.outer = outer;
    shards.inner = inner;
    shards.tokensOfMembers = team.lengths.data();
    shards.group = team.ranks.data();
    shards.groupSize = static_cast<int>(team.ranks.size());
    return shards;
  }

  void loadInputs(const BlockInputs& in) {
    gather(queries_, in.q, q_);
    gather(keys_, in.k, k_);
    gather(keys_, in.v, v_);
  }

  void gather(const Team& team, const Tensor& own, const Tensor& all) {
    Tensor from = own;
    if (!own.dense()) {
      from = denseTensor(stage_, own.type, own.batch, own.tokens, own.heads, own.dim);
      exec_.copy(from, own);
    }
    const auto shards = shardsOf(team, own.type, own.batch, own.heads * own.dim);
    require(seqparAllGather(from.data, all.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
  }

  void gather(const Team& team, const Rows& own, const Rows& all) {
    const auto shards = shardsOf(team, seqparFloat32, own.batch * own.heads, 1);
    require(seqparAllGather(own.data, all.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
  }

  void scatter(const Team& team, const Tensor& sum, const Tensor& sent, const Tensor& to) {
    if (sent.data != sum.data) exec_.copy(sent, sum);
    const Tensor arrives = denseTensor(stage_, sent.type, to.batch, to.tokens, to.heads, to.dim);
    const auto shards = shardsOf(team, sent.type, to.batch, to.heads * to.dim);
    require(seqparReduceScatter(sent.data, arrives.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
    exec_.copy(to, arrives);
  }

  Team queries_, keys_;
  std::vector<Rectangle> rectangles_;
  void* stage_ = nullptr;          ///< send buffer for one tensor of this rank's tokens
  Tensor q_, k_, v_, dOut_, out_;  ///< of the teams
  Partial partial_;                ///< of the query team
  Tensor sentOut_;                 ///< its outputs in the sent type
  Partial own_;                    ///< of this rank's tokens
  Rows delta_, allDelta_;          ///< of this rank, of the query team
  BlockGradients sums_, sent_;
};

Estimate estimateAttention2d(const Problem& problem) {
  const CostModel model(problem);
  const auto cost = meshCost(model);
  const auto& bytes = cost.bytes;
  const auto queries = [&](double sent) { return model.groupUs(sent, cost.a, 1); };
  const auto keys = [&](double sent) { return model.groupUs(sent, cost.b, cost.a); };
  return {queries(bytes.q) + keys(bytes.kv) + cost.forwardUs + model.reduceUs(bytes.out, cost.a, 1),
          queries(bytes.gradientInputs) + keys(bytes.kv) + cost.backwardUs + model.reduceUs(bytes.dq, cost.a, 1) +
              model.reduceUs(bytes.sums, cost.b, cost.a),
          bytes.forward() + bytes.backward()};
}

const RegisteredAlgorithm kAttention2d({.id = seqparAttnAttention2d,
                                        .name = "attention2d",
                                        .paper = "Attention2D, arXiv 2503.15758, without overlap",
                                        .ownLayout = balancedLayout,
                                        .estimate = estimateAttention2d,
                                        .make = makeOrLocal<Attention2dOperator>});

}  // namespace
}  // namespace seqpar::attn
