// USP: A Unified Sequence Parallelism Approach (arXiv 2405.07719), section 3: an all-to-all in groups of ranks gives
// each rank all tokens of its group for some of the heads; the ranks with the same heads of all groups form a ring.
#include <algorithm>

#include "attn/softmax/cost.h"
#include "attn/softmax/head_exchange.h"
#include "attn/softmax/local.h"
#include "attn/softmax/ring.h"

namespace seqpar::attn {
namespace {

int ranksOfUlyssesGroup(const Problem& problem) {
  const int ranks = problem.ranks(), nodes = problem.info.nodes;
  if (problem.desc.inner != 0) return static_cast<int>(problem.desc.inner);
  // The largest group inside a node that divides the key heads, because it sends fewer bytes than a ring.
  const int most = nodes > 1 && ranks % nodes == 0 ? ranks / nodes : ranks;
  int size = 1;
  for (int divisor = 1; divisor <= most; ++divisor) {
    if (most % divisor == 0 && problem.desc.kvHeads % divisor == 0) size = divisor;
  }
  return size;
}

/// The ranks as a table of groups that exchange heads. The n-th ranks of all groups form a ring.
std::vector<std::vector<int>> groupsOf(const Problem& problem) {
  const int size = ranksOfUlyssesGroup(problem), count = problem.ranks() / size;
  std::vector<std::vector<int>> groups(static_cast<size_t>(count));
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const int group = problem.desc.ulyssesOutside != 0 ? rank % count : rank / size;
    groups[static_cast<size_t>(group)].push_back(rank);
  }
  return groups;
}

struct Place {
  size_t group = 0, member = 0;
};

Place placeOf(const std::vector<std::vector<int>>& groups, int rank) {
  Place place;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto found = std::find(groups[g].begin(), groups[g].end(), rank);
    if (found != groups[g].end()) place = {g, static_cast<size_t>(found - groups[g].begin())};
  }
  return place;
}

/// The ring's problem: its ranks are whole groups, and its heads are those of this rank.
Problem ringProblem(const Problem& problem, const std::vector<std::vector<int>>& groups, const HeadExchange& exchange) {
  const auto place = placeOf(groups, problem.rank());
  Problem part = problem;
  for (const auto& group : groups) part.members.push_back(group[place.member]);
  part.info.rank = static_cast<int>(place.group);
  part.info.nranks = static_cast<int>(groups.size());
  part.queries = Sharding(problem.queries, groups);
  part.keys = Sharding(problem.keys, groups);
  part.table = makeScoreTable(part.queries, part.keys, part.visibility());
  part.desc.heads = exchange.heads().count;
  part.desc.kvHeads = exchange.kvHeads().count;
  part.groupOfWhole = problem.group();
  part.phase = exchange.heads().first - exchange.kvHeads().first * problem.group();
  return part;
}

class UspOperator final : public SoftmaxOperator {
 public:
  UspOperator(const Problem& problem, Exec& exec) : UspOperator(problem, exec, groupsOf(problem)) {}

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    const int64_t tokens = exchange_.tokens(), kvTokens = exchange_.kvTokens();
    const int64_t heads = exchange_.heads().count, kvHeads = exchange_.kvHeads().count;
    const auto type = problem_.type();
    block_->carve(arena);
    exchange_.carve(arena);
    if (ring_) ring_->carve(arena);
    if (!problem_.reserves()) carveExchanged(arena);
    if (!problem_.training()) return;
    dOut_ = arena.tensor(type, d.batch, tokens, heads, d.valueDim);
    dq_ = arena.tensor(type, d.batch, tokens, heads, d.headDim);
    // If each key head has one rank of the group, its gradients are complete.
    const auto sum = exchange_.copiesKvHeads() ? problem_.wireType() : type;
    dk_ = arena.tensor(sum, d.batch, kvTokens, kvHeads, d.headDim);
    dv_ = arena.tensor(sum, d.batch, kvTokens, kvHeads, d.valueDim);
    delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
    dSinks_ = static_cast<float*>(arena.take(static_cast<size_t>(heads) * sizeof(float)));
  }

  void carveReserve(Arena& arena) override { carveExchanged(arena); }

  void open() override {
    block_->prepare();
    if (ring_) ring_->open();
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    loadInputs(blockInputs(problem_, args));
    if (ring_) {
      seqparAttnForwardArgs_t part = SEQPAR_ATTN_FORWARD_INITIALIZER;
      part.q = argumentOf(q_);
      part.k = argumentOf(k_);
      part.v = argumentOf(v_);
      part.out = argumentOf(out_);
      part.lse = lse_.data;
      part.sinks = sinksOfHeads(args.sinks);
      ring_->forward(part);
    }
    exchange_.toSequence(out_, outTensor(problem_, args.out), exchange_.queries());
    exchange_.toSequence(lse_, lseRows(problem_, args.lse));  // always: another rank's caller may need them
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    if (problem_.desc.sinks != 0) makeDelta(*block_, args, delta_);  // for the sinks' gradient
    if (!problem_.reserves()) {
      loadInputs(blockInputs(problem_, args));
      exchange_.toHeads(outTensor(problem_, args.out), out_, exchange_.queries());
      exchange_.toHeads(lseRows(problem_, args.lse), lse_);
    }
    exchange_.toHeads(outTensor(problem_, args.dOut), dOut_, exchange_.queries());
    if (ring_) {
      seqparAttnBackwardArgs_t part = SEQPAR_ATTN_BACKWARD_INITIALIZER;
      part.q = argumentOf(q_);
      part.k = argumentOf(k_);
      part.v = argumentOf(v_);
      part.out = argumentOf(out_);
      part.dOut = argumentOf(dOut_);
      part.lse = lse_.data;
      part.sinks = sinksOfHeads(args.sinks);
      part.dSinks = dSinks_;
      ring_->backward(part, {dq_, dk_, dv_});
    }
    exchange_.toSequence(dq_, queryTensor(problem_, args.dq), exchange_.queries());
    exchange_.toSequence(dk_, keyTensor(problem_, args.dk), exchange_.keys());
    exchange_.toSequence(dv_, valueTensor(problem_, args.dv), exchange_.keys());
  }

 private:
  UspOperator(const Problem& problem, Exec& exec, const std::vector<std::vector<int>>& groups)
      : SoftmaxOperator(problem, exec),
        exchange_(problem, exec, groups[placeOf(groups, problem.rank()).group]),
        part_(ringProblem(problem, groups, exchange_)) {
    if (exchange_.heads().count > 0) ring_ = std::make_unique<RingOperator>(part_, exec, part_.ranks());
  }

  const float* sinksOfHeads(const float* all) const {
    return sinks(all) == nullptr ? nullptr : all + exchange_.heads().first;
  }

  /// The exchanged tensors that `reserve` keeps from forward to backward.
  void carveExchanged(Arena& arena) {
    const auto& d = problem_.desc;
    const int64_t tokens = exchange_.tokens(), kvTokens = exchange_.kvTokens();
    const int64_t heads = exchange_.heads().count, kvHeads = exchange_.kvHeads().count;
    const auto type = problem_.type();
    q_ = arena.tensor(type, d.batch, tokens, heads, d.headDim);
    k_ = arena.tensor(type, d.batch, kvTokens, kvHeads, d.headDim);
    v_ = arena.tensor(type, d.batch, kvTokens, kvHeads, d.valueDim);
    out_ = arena.tensor(type, d.batch, tokens, heads, d.valueDim);
    lse_ = arena.rows(d.batch, heads, tokens);
  }

  void loadInputs(const BlockInputs& in) {
    exchange_.toHeads(in.q, q_, exchange_.queries());
    exchange_.toHeads(in.k, k_, exchange_.keys());
    exchange_.toHeads(in.v, v_, exchange_.keys());
  }

  HeadExchange exchange_;
  Problem part_;
  std::unique_ptr<RingOperator> ring_;            ///< null if this rank has no heads
  Tensor q_, k_, v_, out_, dOut_, dq_, dk_, dv_;  ///< of the group's tokens and this rank's heads
  Rows lse_, delta_;
  float* dSinks_ = nullptr;  ///< of the ring; the caller receives those of its tokens
};

}  // namespace

namespace {

Estimate estimateUsp(const Problem& problem) {
  const CostModel model(problem);
  const auto& d = problem.desc;
  const int size = ranksOfUlyssesGroup(problem), rounds = problem.ranks() / size;
  const double leaves = static_cast<double>(size - 1) / size;
  const double copies = std::max(1.0, static_cast<double>(size) / static_cast<double>(d.kvHeads));
  const auto queries = static_cast<double>(problem.queries.longest()),
             keys = static_cast<double>(problem.keys.longest());
  const double q = leaves * model.qBytes(queries), out = leaves * model.outBytes(queries);
  const double kv = copies * model.kvBytes(keys), sums = copies * model.kvSumBytes(keys);
  const double sumsHome = leaves * (d.kvHeads % size != 0 ? sums : kv);  // copied heads: partial sums
  const int64_t mostHeads = (d.heads + size - 1) / size;
  const double busiest = static_cast<double>(mostHeads) / static_cast<double>(d.heads);
  const double scores = model.mostScores() * size * busiest;
  const int stride = d.ulyssesOutside != 0 ? rounds : 1, ringStride = d.ulyssesOutside != 0 ? 1 : size;
  const auto ring = [&](double sent) { return rounds > 1 ? model.ringUs(sent, rounds, ringStride) : 0; };
  const auto send = [&](double sent) { return model.groupUs(sent, size, stride); };
  const double forwardRing = (rounds - 1) * ring(kv), backwardRing = (rounds - 1) * (ring(kv) + ring(sums));
  const double load = send(q) + send(leaves * kv);
  const auto groups = groupsOf(problem);
  const Sharding groupQueries(problem.queries, groups), groupKeys(problem.keys, groups);
  auto shape = model.shapeOf(groupQueries.runsOf(rounds / 2), groupKeys.runsOf(rounds / 2));
  if (rounds > 1) {
    const auto other = model.shapeOf(groupQueries.runsOf(rounds / 2), groupKeys.runsOf(rounds / 2 - 1));
    shape = shape.with(other, rounds - 1);
  }
  shape = model.ofHeads(shape, 1.0 / size);
  const double again = problem.reserves() ? 0 : 1;  // number of exchanges of inputs and outputs in the backward pass
  return {load + model.overlapUs(model.blockUs(scores, false, shape), forwardRing, (rounds - 1) * kv) + send(out),
          again * (load + send(out)) + send(out) +
              model.overlapUs(model.blockUs(scores, true, shape), backwardRing, (rounds - 1) * (kv + sums)) +
              ring(sums) + send(q) + send(sumsHome),
          2 * q + 2 * out + leaves * kv + again * (q + out + leaves * kv) + sumsHome + 2 * (rounds - 1) * kv +
              (rounds > 1 ? rounds * sums : 0)};
}

const RegisteredAlgorithm kUsp({.id = seqparAttnUsp,
                                .name = "usp",
                                .paper = "Unified Sequence Parallelism, arXiv 2405.07719, section 3",
                                .ownLayout = balancedLayout,
                                .estimate = estimateUsp,
                                .make = makeOrLocal<UspOperator>});

}  // namespace
}  // namespace seqpar::attn
