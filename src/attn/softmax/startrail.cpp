// STARTRAIL: StarTrail (arXiv 2407.00611), concentric rings: teams of C consecutive ranks gather their queries, keys
// and values. The teams are an array of C columns: in each row, member m of a team in column j starts with the keys of
// the team in column j + m, which rotate over the rows, so C members process all keys in a C-th of the steps. Partial
// outputs are reduced and scattered in the team, in the wire type. The backward pass does the same with gradients.
#include <algorithm>

#include "attn/boundary.h"
#include "attn/softmax/local.h"
#include "attn/softmax/mesh_cost.h"
#include "attn/softmax/ring.h"
#include "seqpar/exchange.h"

namespace seqpar::attn {
namespace {

int ranksOfTeam(const Problem& problem) {
  if (problem.desc.inner != 0) return static_cast<int>(problem.desc.inner);
  int size = 1;
  for (int c = 1; c * c <= problem.ranks(); ++c) {
    if (problem.ranks() % (c * c) == 0) size = c;
  }
  return size;
}

constexpr const char* kCaller = "attention plan";

/// Rank = (row * C + column) * C + member.
struct Place {
  int size, row, column, member;

  Place(const Problem& problem, int rank)
      : size(ranksOfTeam(problem)), row(rank / (size * size)), column(rank / size % size), member(rank % size) {}
  int rank(int atRow, int atColumn, int atMember) const { return (atRow * size + (atColumn % size)) * size + atMember; }
  std::vector<int> team(int atRow, int atColumn) const {
    std::vector<int> ranks;
    ranks.reserve(static_cast<size_t>(size));
    for (int m = 0; m < size; ++m) ranks.push_back(rank(atRow, atColumn, m));
    return ranks;
  }
};

/// The problem of a ring of rows: queries of the teams of one column with the keys of another column's teams.
Problem ringProblem(const Problem& problem) {
  const Place place(problem, problem.rank());
  const int rows = problem.ranks() / (place.size * place.size);
  Problem part = problem;
  std::vector<std::vector<int>> queries, keys;
  for (int row = 0; row < rows; ++row) {
    part.members.push_back(place.rank(row, place.column, place.member));
    queries.push_back(place.team(row, place.column));
    keys.push_back(place.team(row, place.column + place.member));
  }
  part.info.rank = place.row;
  part.info.nranks = rows;
  part.queries = Sharding(problem.queries, queries);
  part.keys = Sharding(problem.keys, keys);
  part.table = makeScoreTable(part.queries, part.keys, part.visibility());
  part.desc.sinks = 0;  // added after all members' parts are merged
  return part;
}

std::vector<int64_t> lengthsOf(const Sharding& sharding, const std::vector<int>& ranks) {
  std::vector<int64_t> lengths;
  lengths.reserve(ranks.size());
  for (const int rank : ranks) lengths.push_back(sharding.tokensOf(rank));
  return lengths;
}

class StarTrailOperator final : public SoftmaxOperator {
 public:
  StarTrailOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec),
        place_(problem, problem.rank()),
        team_(place_.team(place_.row, place_.column)),
        lengths_(lengthsOf(problem.queries, team_)),
        part_(ringProblem(problem)),
        ring_(part_, exec, part_.ranks()) {}

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    block_->carve(arena);
    ring_.carve(arena);
    const int64_t tokens = part_.tokens(), keys = std::max(part_.kvTokens(), tokens), own = problem_.tokens();
    const auto input = [&](int64_t count, int64_t heads, int64_t dim) {
      return arena.tensor(problem_.type(), d.batch, count, heads, dim);
    };
    const auto partial = [&](int64_t count, int64_t heads, int64_t dim) {
      return arena.tensor(problem_.wireType(), d.batch, count, heads, dim);
    };
    q_ = input(tokens, d.heads, d.headDim);
    partialOut_ = partial(tokens, d.heads, d.valueDim);
    lse_ = arena.rows(d.batch, d.heads, tokens);
    for (auto* const k : {&teamK_, &ringK_}) *k = input(keys, d.kvHeads, d.headDim);
    for (auto* const v : {&teamV_, &ringV_}) *v = input(keys, d.kvHeads, d.valueDim);
    stage_ = arena.take(static_cast<size_t>(d.batch * own * d.heads * std::max(d.headDim, d.valueDim)) *
                        std::max(bytesOf(problem_.type()), bytesOf(problem_.wireType())));
    ownOut_ = partial(own, d.heads, d.valueDim);
    partial_ = takePartial(arena, own);
    if (!problem_.training()) return;
    out_ = input(tokens, d.heads, d.valueDim);
    dOut_ = input(tokens, d.heads, d.valueDim);
    dq_ = partial(tokens, d.heads, d.headDim);
    for (auto* const dk : {&teamDk_, &ringDk_}) *dk = partial(keys, d.kvHeads, d.headDim);
    for (auto* const dv : {&teamDv_, &ringDv_}) *dv = partial(keys, d.kvHeads, d.valueDim);
    delta_ = arena.rows(d.batch, d.heads, own);
  }

  void open() override {
    block_->prepare();
    ring_.open();
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    loadInputs(blockInputs(problem_, args));
    seqparAttnForwardArgs_t part = SEQPAR_ATTN_FORWARD_INITIALIZER;
    part.q = argumentOf(q_);
    part.k = argumentOf(keysOfRing(ringK_));
    part.v = argumentOf(keysOfRing(ringV_));
    part.lse = lse_.data;
    ring_.forward(part, partialOut_);
    const auto& sent = partialOut_;
    const auto shards = shardsOf(sent.type, sent.batch, sent.heads * sent.dim);
    require(seqparReduceScatterLse(sent.data, lse_.data, ownOut_.data, partial_.lse.data, sent.heads, &shards,
                                   problem_.comm, exec_.main()),
            kCaller, problem_.comm);
    exec_.copy(partial_.out, ownOut_);
    block_->finish(partial_, sinks(args.sinks), outTensor(problem_, args.out), lseRows(problem_, args.lse));
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    if (problem_.desc.sinks != 0) makeDelta(*block_, args, delta_);  // for the sinks' gradient
    loadInputs(blockInputs(problem_, args));
    gather(outTensor(problem_, args.out), out_);
    gather(outTensor(problem_, args.dOut), dOut_);
    const auto rows = shardsOf(seqparFloat32, lse_.batch * lse_.heads, 1);
    require(seqparAllGather(args.lse, lse_.data, &rows, problem_.comm, exec_.main()), kCaller, problem_.comm);
    seqparAttnBackwardArgs_t part = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    part.q = argumentOf(q_);
    part.k = argumentOf(keysOfRing(ringK_));
    part.v = argumentOf(keysOfRing(ringV_));
    part.out = argumentOf(out_);
    part.dOut = argumentOf(dOut_);
    part.lse = lse_.data;
    ring_.backward(part, {dq_, keysOfRing(ringDk_), keysOfRing(ringDv_)});
    scatter(dq_, queryTensor(problem_, args.dq));
    shift(keysOfRing(ringDk_), keysOfRing(ringDv_), place_.member, keysOfTeam(teamDk_), keysOfTeam(teamDv_));
    scatter(keysOfTeam(teamDk_), keyTensor(problem_, args.dk));
    scatter(keysOfTeam(teamDv_), valueTensor(problem_, args.dv));
  }

 private:
  static Tensor dense(const Tensor& buffer, int64_t tokens) {
    return denseTensor(buffer.data, buffer.type, buffer.batch, tokens, buffer.heads, buffer.dim);
  }
  Tensor keysOfTeam(const Tensor& buffer) const { return dense(buffer, part_.tokens()); }
  Tensor keysOfRing(const Tensor& buffer) const { return dense(buffer, part_.kvTokens()); }

  seqparShards_t shardsOf(seqparDataType_t type, int64_t outer, int64_t inner) const {
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.dataType = type;
    shards.outer = outer;
    shards.inner = inner;
    shards.tokensOfMembers = lengths_.data();
    shards.group = team_.data();
    shards.groupSize = static_cast<int>(team_.size());
    return shards;
  }

  Tensor staged(const Tensor& like, seqparDataType_t type) const {
    return denseTensor(stage_, type, like.batch, like.tokens, like.heads, like.dim);
  }

  void gather(const Tensor& own, const Tensor& all) {
    const Tensor from = staged(own, own.type);
    exec_.copy(from, own);
    const auto shards = shardsOf(own.type, own.batch, own.heads * own.dim);
    require(seqparAllGather(from.data, all.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
  }

  void scatter(const Tensor& sum, const Tensor& to) {
    const Tensor arrives = staged(to, sum.type);
    const auto shards = shardsOf(sum.type, to.batch, to.heads * to.dim);
    require(seqparReduceScatter(sum.data, arrives.data, &shards, problem_.comm, exec_.main()), kCaller, problem_.comm);
    exec_.copy(to, arrives);
  }

  /// Sends to the same member of the team `columns` columns later in this row, and receives from the one `columns`
  /// columns before.
  void shift(const Tensor& k, const Tensor& v, int columns, const Tensor& toK, const Tensor& toV) {
    const void* const sent[] = {k.data, v.data};
    void* const received[] = {toK.data, toV.data};
    const size_t sentBytes[] = {k.bytes(), v.bytes()}, receivedBytes[] = {toK.bytes(), toV.bytes()};
    seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
    params.sendPeer = place_.rank(place_.row, place_.column + columns, place_.member);
    params.receivePeer = place_.rank(place_.row, place_.column + place_.size - columns, place_.member);
    params.sendTensors = params.receiveTensors = 2;
    params.sendBuffers = sent;
    params.sendBytes = sentBytes;
    params.receiveBuffers = received;
    params.receiveBytes = receivedBytes;
    require(seqparShift(&params, problem_.comm, exec_.main()), kCaller, problem_.comm);
  }

  void loadInputs(const BlockInputs& own) {
    gather(own.q, q_);
    gather(own.k, teamK_);
    gather(own.v, teamV_);
    shift(keysOfTeam(teamK_), keysOfTeam(teamV_), place_.size - place_.member, keysOfRing(ringK_), keysOfRing(ringV_));
  }

  Place place_;
  std::vector<int> team_;
  std::vector<int64_t> lengths_;  ///< tokens of its members
  Problem part_;
  RingOperator ring_;
  Tensor q_, out_, dOut_;                 ///< of the team
  Tensor teamK_, teamV_, ringK_, ringV_;  ///< of the team; of the team of this rank's first keys
  Tensor partialOut_, dq_;                ///< of the team, of some keys, in the wire type
  Tensor teamDk_, teamDv_, ringDk_, ringDv_;
  Rows lse_, delta_;
  void* stage_ = nullptr;  ///< send buffer for one tensor of this rank's tokens
  Tensor ownOut_;          ///< of this rank
  Partial partial_;
};

}  // namespace

namespace {

std::string refusesStarTrail(const Problem& problem) {
  const int size = ranksOfTeam(problem);
  if (problem.ranks() % (size * size) != 0) return "needs a number of ranks that is divisible by the squared team size";
  if (problem.crossAttention()) return "supports self-attention only";
  return {};
}

Estimate estimateStarTrail(const Problem& problem) {
  const CostModel model(problem);
  const auto& d = problem.desc;
  const int size = ranksOfTeam(problem), rows = problem.ranks() / (size * size);
  const auto tokens = static_cast<double>(problem.queries.longest()), others = tokens * (size - 1);
  const auto wire = problem.wireType();
  const double q = model.qBytes(others), out = model.outBytes(others), kv = model.kvBytes(others);
  const double dq = model.bytes(others, d.heads, d.headDim, wire), sums = model.kvSumBytes(others);
  const double partial = model.bytes(others, d.heads, d.valueDim, wire);
  const double numbers = model.bytes(others, d.heads, 1, seqparFloat32);
  const double teamKv = model.kvBytes(tokens * size), teamSums = model.kvSumBytes(tokens * size);
  const double moved = size > 1 ? teamKv : 0, movedSums = size > 1 ? teamSums : 0, sumsHome = rows > 1 ? teamSums : 0;
  const auto send = [&](double sent) { return model.groupUs(sent, size, 1); };  // in a team
  const auto reduce = [&](double sent) { return model.reduceUs(sent, size, 1); };
  const auto shape = meshShape(model, problem.ranks());
  const double load = send(q) + send(kv) + model.sendUs(moved);
  const double forwardRing = (rows - 1) * model.sendUs(teamKv);
  const double backwardRing = (rows - 1) * (model.sendUs(teamKv) + model.sendUs(teamSums));
  const double scores = model.mostScores();  // a team's rows, each with a part of the keys
  return {load + model.overlapUs(model.blockUs(scores, false, shape), forwardRing, (rows - 1) * teamKv) +
              reduce(partial + numbers),
          load + send(2 * out + numbers) +
              model.overlapUs(model.blockUs(scores, true, shape), backwardRing, (rows - 1) * (teamKv + teamSums)) +
              model.sendUs(sumsHome) + reduce(dq) + model.sendUs(movedSums) + reduce(sums),
          2 * q + dq + 2 * out + partial + 2 * numbers + 2 * kv + sums + 2 * moved + movedSums +
              (rows - 1) * (2 * teamKv + teamSums) + sumsHome};
}

const RegisteredAlgorithm kStarTrail({.id = seqparAttnStarTrail,
                                      .name = "startrail",
                                      .paper = "StarTrail, arXiv 2407.00611, concentric rings",
                                      .refuses = refusesStarTrail,
                                      .ownLayout = balancedLayout,
                                      .estimate = estimateStarTrail,
                                      .make = makeOrLocal<StarTrailOperator>});

}  // namespace
}  // namespace seqpar::attn
